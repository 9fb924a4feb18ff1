"""Measures the GPU kernels on the GPU at hand and keeps the figures: python -m benchmarks.gpu.run [--directory D].

Every implementation's results are checked against float64 before it is timed. What fails keeps nothing else from being
measured, and the file is written anew after every case: a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.inputs import precision
from benchmarks.gpu.results import FUSED, GpuResults, Measurement, write_gpu_results
from benchmarks.gpu.sources import ROOT, source_hashes
from benchmarks.gpu.suite import suite_of
from benchmarks.gpu.tables import gpu_table, missed_targets
from benchmarks.gpu.timing import HOST_SECONDS, REPLAYED, Events, Timer, median_seconds, replay_of
from benchmarks.gpu.work import Floor, GpuCase
from crossret_kernels.backends import CUDA_MISSING

RESULTS = ROOT / "benchmarks/results"


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
    """All implementations of a case, each beside its floor; `missing` gets what gave no figures, and why."""
    work, floors, measurements = case.work(device), Floors(timer), []
    for name in case.implementations:
        if name == "cuda" and CUDA_MISSING is not None:
            missing[name] = CUDA_MISSING
            continue
        try:
            own = work.calls(name)
            floor = floors.seconds(own.floor)
            seconds, rounds = median_seconds(own.calls, timer)
            replayed = None
            if name in FUSED and seconds < HOST_SECONDS and device.type == "cuda":
                replays = (own.calls if own.replays is None else own.replays)[:REPLAYED]
                replayed, _ = median_seconds([replay_of(call) for call in replays], timer)
            peak = peak_mebibytes(own.calls[0])
        except ImportError as reason:
            missing[name] = str(reason)
            continue
        except Exception as reason:  # a lent machine is too dear to lose the other figures with this one
            where = f"{name}, {case.operation}, {case.shape}, {case.precision}"
            missing[where] = f"{type(reason).__name__}: {reason}"
            continue
        measurements.append(
            Measurement(
                operation=case.operation,
                case=case.shape,
                precision=case.precision,
                implementation=name,
                pairs=own.pairs,
                work=own.work,
                seconds=seconds,
                rounds=rounds,
                replayed_seconds=replayed,
                floor=own.floor.name,
                floor_seconds=floor,
                error=own.error,
                peak_mebibytes=peak,
                target=case.targets.get(name),
                slower=case.slower(name),
            )
        )
    return measurements


class Floors:
    """Those of a case, each timed once."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.timed: list[tuple[Floor, float]] = []

    def seconds(self, floor: Floor) -> float:
        made = next((seconds for timed, seconds in self.timed if timed.calls is floor.calls), None)
        if made is None:
            made, _ = median_seconds(floor.calls, self.timer)
            self.timed.append((floor, made))
        return made * floor.times


def run(cases: Sequence[GpuCase], device: torch.device, timer: Timer) -> Iterator[GpuResults]:
    """Measures the cases one after the other, saying each as it is done; all results so far after every one of them."""
    results = nothing_yet(device)
    for case in cases:
        with precision(case.precision):
            made = measure(case, device, timer, results.missing)
        for m in made:
            ratio = f"{m.seconds * 1e3:.3g} ms, {m.floor_ratio:.2f} × the floor ({m.floor})"
            wanted = "" if m.target is None else f", wanted {m.target:.2f}"
            print(f"{', '.join(m.group)}, {m.implementation}: {ratio}{wanted}", flush=True)
        results.measurements.extend(made)
        yield results


def nothing_yet(device: torch.device) -> GpuResults:
    """Results of a run that begins."""
    sources = source_hashes()
    return GpuResults(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        device=describe_device(device),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
            "triton": triton.__version__,
        },
        sources=sources,
        suite=suite_of(sources),
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
    print(gpu_table(results, results.sources), *missed_targets(results), f"wrote {path}", sep="\n")
    return int(any(name.startswith(FUSED) for name in results.missing))


if __name__ == "__main__":
    sys.exit(main())
