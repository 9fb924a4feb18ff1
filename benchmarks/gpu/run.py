"""Measures the Triton kernels on the GPU at hand and keeps the figures: python -m benchmarks.gpu.run [--directory D].

Every implementation's results are checked against float64 before it is timed. What fails keeps nothing else from being
measured, and the file is written anew after every case: a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.cases import Inputs
from benchmarks.checks import TOLERANCES, sample_items
from benchmarks.gpu.cases import CASES, DTYPES, SAMPLED_CAPTIONS, GpuCase
from benchmarks.gpu.implementations import SAMPLED, Score, maxsim, on_device, operands, scan
from benchmarks.gpu.results import FUSED, GpuResults, Measurement, write_gpu_results
from benchmarks.gpu.sources import ROOT, sources_hash
from benchmarks.gpu.tables import gpu_table, missed_targets
from benchmarks.gpu.timing import HOST_SECONDS, REPLAYED, Events, Timer, copies, median_seconds, replay_of
from benchmarks.loops import maxsim_loop, scan_loop
from crossret_kernels import triplet_loss

RESULTS = ROOT / "benchmarks/results"
CHECKED_STEP = 16  # images and captions of the training step that is checked
OTHERS_STEP = 0.5  # how far off others' gradients may be: of similarities that they round another one may be the best


@contextmanager
def precision(name: str) -> Any:
    """Whether float32 features are multiplied in TF32, for the time being."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def score_of(case: GpuCase, name: str) -> Score:
    return maxsim(name) if case.setting is None else scan(name, case.options)


def oracle_of(case: GpuCase) -> Score:
    return maxsim_loop if case.setting is None else partial(scan_loop, **case.options)


def step(score: Score, inputs: Inputs) -> tuple[Tensor, ...]:
    """Gradients in both sides' features of the hardest-negative loss."""
    return torch.autograd.grad(triplet_loss(score(inputs).float()), (inputs.regions, inputs.words))


def checked_step(score: Score, inputs: Inputs) -> Tensor:
    """Both gradients of a sum of scores by fixed weights: which pair is the hardest negative may hang on rounding."""
    scores = score(inputs).float()
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(scores)
    grads = torch.autograd.grad((scores * weights).sum(), (inputs.regions, inputs.words))
    return torch.cat([grad.flatten() for grad in grads])


def error_of(case: GpuCase, score: Score, inputs: Inputs, tolerance: float) -> float:
    """The largest difference to float64 of a sample of scores; of a training step ‖difference‖ / ‖gradients‖.

    Raises:
        AssertionError: it is more than the precision explains.
    """
    oracle = oracle_of(case)
    if case.training:
        few = inputs.first(CHECKED_STEP, CHECKED_STEP)
        sides = [Inputs(few.regions.detach().to(dtype).requires_grad_(), few.region_lengths,
                        few.words.detach().to(dtype).requires_grad_(), few.word_lengths)
                 for dtype in (few.regions.dtype, torch.float64)]  # fmt: skip
        found, expected = checked_step(score, sides[0]), checked_step(oracle, sides[1])
        error = float((found.double() - expected).norm() / expected.norm())
    else:
        images, captions = sample_items(len(inputs.regions)), sample_items(len(inputs.words))
        expected = oracle(inputs.pick(images, captions).to(torch.float64))
        found = score(inputs)[images.to(inputs.regions.device)[:, None], captions.to(inputs.regions.device)]
        error = float((found.double() - expected).abs().max() / max(1.0, float(expected.abs().max())))
    assert error <= tolerance, f"{case.operation}, {case.case}, {case.precision}: off by {error:.3g}"
    return error


def peak_mebibytes(call: Callable[[], Tensor | Sequence[Tensor]]) -> float:
    """Of the device's memory, beyond what there was before the call and its results."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    peak = torch.cuda.max_memory_allocated()
    kept = [results] if isinstance(results, Tensor) else list(results)
    return (peak - before - sum(result.untyped_storage().nbytes() for result in kept)) / 2**20


def tolerance_of(case: GpuCase, name: str) -> float:
    """How far off an implementation may be."""
    if case.training and name != FUSED:
        return OTHERS_STEP
    return 1e-2 if case.precision == "tf32" else TOLERANCES[DTYPES[case.precision]]


def measure(case: GpuCase, device: torch.device, timer: Timer, missing: dict[str, str]) -> list[Measurement]:
    """All implementations of a case, beside the floor measured first; `missing` gets what gave no figures, and why."""
    first = on_device(case.case.inputs(), device, DTYPES[case.precision])
    sets = [first]
    while len(sets) < copies(first.regions.nbytes + first.words.nbytes):
        sets.append(Inputs(first.regions.clone(), first.region_lengths, first.words.clone(), first.word_lengths))
    packed = [operands(inputs) for inputs in sets]
    floor, _ = median_seconds([partial(torch.matmul, regions, words.T) for regions, words in packed], timer)
    del packed
    if case.training:
        for inputs in sets:
            inputs.regions.requires_grad_()
            inputs.words.requires_grad_()
    measurements = []
    for name in case.implementations:
        sampled = name in SAMPLED and case.case.n_captions > SAMPLED_CAPTIONS
        own = [inputs.first(case.case.n_images, SAMPLED_CAPTIONS) for inputs in sets] if sampled else sets
        try:
            score = score_of(case, name)
            error = error_of(case, score, own[0], tolerance_of(case, name))
            run: Callable[[Inputs], Any] = partial(step, score) if case.training else score
            calls = [partial(run, inputs) for inputs in own]
            seconds, rounds = median_seconds(calls, timer)
            replayed = None
            if name == FUSED and seconds < HOST_SECONDS and device.type == "cuda":
                replayed, _ = median_seconds([replay_of(call) for call in calls[:REPLAYED]], timer)
            peak = peak_mebibytes(calls[0])
        except ImportError as reason:
            missing[name] = str(reason)
            continue
        except Exception as reason:  # a lent machine is too dear to lose the other figures with this one
            missing[f"{name}, {case.operation}, {case.case}, {case.precision}"] = f"{type(reason).__name__}: {reason}"
            continue
        measurements.append(
            Measurement(
                operation=case.operation,
                case=str(case.case),
                precision=case.precision,
                implementation=name,
                pairs=own[0].pairs,
                flop=own[0].flop,
                products=case.products,
                seconds=seconds,
                rounds=rounds,
                replayed_seconds=replayed,
                floor_seconds=floor * case.products * own[0].flop / first.flop,
                error=error,
                peak_mebibytes=peak,
                target=case.target if name == case.implementations[0] else None,
                slower=case.slower(name),
            )
        )
    return measurements


def run(cases: Sequence[GpuCase], device: torch.device, timer: Timer) -> Iterator[GpuResults]:
    """Measures the cases one after the other, saying each as it is done; all results so far after every one of them."""
    results = nothing_yet(device)
    for case in cases:
        with precision(case.precision):
            made = measure(case, device, timer, results.missing)
        for m in made:
            ratio = f"{m.seconds * 1e3:.3g} ms, {m.floor_ratio:.2f} × the floor"
            print(f"{', '.join(m.group)}, {m.implementation}: {ratio}", flush=True)
        results.measurements.extend(made)
        yield results


def nothing_yet(device: torch.device) -> GpuResults:
    """Results of a run that begins."""
    return GpuResults(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        device=describe_device(device),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
            "triton": triton.__version__,
        },
        sources=sources_hash(),
        missing={},
        measurements=[],
    )


def describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": device.type}
    found = torch.cuda.get_device_properties(device)
    capability = f"{found.major}.{found.minor}"
    return {"name": found.name, "capability": capability, "mebibytes": found.total_memory // 2**20}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the figures are kept")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu: this PyTorch finds no CUDA device", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    results = nothing_yet(device)
    path = arguments.directory / f"{results.name}.json"
    for results in run(CASES, device, Events()):
        write_gpu_results(results, path)
    print(gpu_table(results, sources_hash()), *missed_targets(results), f"wrote {path}", sep="\n")
    return int(any(name.startswith(FUSED) for name in results.missing))


if __name__ == "__main__":
    sys.exit(main())
