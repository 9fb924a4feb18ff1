"""Measures the Triton kernels on the GPU at hand and keeps the figures: python -m benchmarks.gpu.run [--directory D].

Every implementation's results are checked against float64 before it is timed.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.cases import Inputs
from benchmarks.checks import TOLERANCES, sample_items
from benchmarks.gpu.cases import CASES, DTYPES, GpuCase
from benchmarks.gpu.implementations import Score, maxsim, on_device, operands, scan
from benchmarks.gpu.results import GpuResults, Measurement, write_gpu_results
from benchmarks.gpu.sources import ROOT, sources_hash
from benchmarks.gpu.tables import gpu_table, missed_targets
from benchmarks.gpu.timing import Events, Timer, copies, median_seconds
from benchmarks.loops import maxsim_loop, scan_loop
from crossret_kernels import triplet_loss

RESULTS = ROOT / "benchmarks/results"
CHECKED_STEP = 16  # images and captions of the training step that is checked


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


def error_of(case: GpuCase, score: Score, inputs: Inputs) -> float:
    """The largest difference to float64 of a sample: of scores, or of gradients relative to the largest of them.

    Raises:
        AssertionError: it is more than the precision explains.
    """
    oracle = oracle_of(case)
    if case.training:
        few = inputs.first(CHECKED_STEP, CHECKED_STEP)
        sides = [Inputs(few.regions.detach().to(dtype).requires_grad_(), few.region_lengths,
                        few.words.detach().to(dtype).requires_grad_(), few.word_lengths)
                 for dtype in (few.regions.dtype, torch.float64)]  # fmt: skip
        pairs = zip(step(score, sides[0]), step(oracle, sides[1]), strict=True)
        error = max(float((ours.double() - true).abs().max() / true.abs().max()) for ours, true in pairs)
    else:
        images, captions = sample_items(len(inputs.regions)), sample_items(len(inputs.words))
        expected = oracle(inputs.pick(images, captions).to(torch.float64))
        found = score(inputs)[images.to(inputs.regions.device)[:, None], captions.to(inputs.regions.device)]
        error = float((found.double() - expected).abs().max() / max(1.0, float(expected.abs().max())))
    tolerance = 1e-2 if case.precision == "tf32" else TOLERANCES[inputs.regions.dtype]
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


def measure(case: GpuCase, device: torch.device, timer: Timer, missing: dict[str, str]) -> list[Measurement]:
    """All implementations of a case, beside the floor measured first; `missing` gets what cannot be imported."""
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
        try:
            score = score_of(case, name)
        except ImportError as error:
            missing[name] = str(error)
            continue
        error = error_of(case, score, first)
        run: Callable[[Inputs], Any] = partial(step, score) if case.training else score
        calls = [partial(run, inputs) for inputs in sets]
        seconds, rounds = median_seconds(calls, timer)
        measurements.append(
            Measurement(
                operation=case.operation,
                case=str(case.case),
                precision=case.precision,
                implementation=name,
                pairs=first.pairs,
                flop=first.flop,
                products=case.products,
                seconds=seconds,
                rounds=rounds,
                floor_seconds=floor * case.products,
                error=error,
                peak_mebibytes=peak_mebibytes(calls[0]),
                target=case.target if name == case.implementations[0] else None,
            )
        )
    return measurements


def run(cases: Sequence[GpuCase], device: torch.device, timer: Timer) -> GpuResults:
    """Measures the cases one after the other, saying each as it is done."""
    missing: dict[str, str] = {}
    measurements: list[Measurement] = []
    for case in cases:
        with precision(case.precision):
            made = measure(case, device, timer, missing)
        for m in made:
            ratio = f"{m.seconds * 1e3:.3g} ms, {m.floor_ratio:.2f} × the floor"
            print(f"{', '.join(m.group)}, {m.implementation}: {ratio}", flush=True)
        measurements += made
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
        missing=missing,
        measurements=measurements,
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
    results = run(CASES, torch.device("cuda"), Events())
    path = arguments.directory / f"{results.name}.json"
    write_gpu_results(results, path)
    print(gpu_table(results, sources_hash()), *missed_targets(results), f"wrote {path}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
