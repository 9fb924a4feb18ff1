"""Measures the GPU kernels on the GPU at hand, or what stands beside them: python -m benchmarks.gpu.run fused|rivals.

Every implementation's results are checked against float64 before it is timed. What fails keeps nothing else from being
measured, and every figure is kept as it is made.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.gpu import facts
from benchmarks.gpu.cases import FIGURES, RIVALS
from benchmarks.gpu.inputs import precision
from benchmarks.gpu.lines import tell
from benchmarks.gpu.results import FUSED, Measurement
from benchmarks.gpu.sources import source_hashes
from benchmarks.gpu.timing import HOST_SECONDS, REPLAYED, Events, Timer, median_seconds, replay_of
from benchmarks.gpu.work import Floor, GpuCase
from crossret_kernels.backends import CUDA_MISSING


def peak_mebibytes(call: Callable[[], Tensor | Sequence[Tensor]]) -> float:
    """Peak of the device's memory beyond inputs and results."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    peak = torch.cuda.max_memory_allocated()
    kept = [results] if isinstance(results, Tensor) else list(results)
    return (peak - before - sum(result.untyped_storage().nbytes() for result in kept)) / 2**20


def measure(
    case: GpuCase, device: torch.device, timer: Timer, rates: Mapping[str, float], missing: dict[str, str]
) -> Iterator[Measurement]:
    """All implementations of a case, each beside its floor; `missing` gets what gave no figures, and why."""
    work, floors = case.work(device), Floors(timer, rates)
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
        yield Measurement(
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


class Floors:
    """Floors of a case: by a rate of the card, or each timed once."""

    def __init__(self, timer: Timer, rates: Mapping[str, float]) -> None:
        self.timer, self.rates = timer, rates
        self.timed: list[tuple[Floor, float]] = []

    def seconds(self, floor: Floor) -> float:
        if floor.rate:
            return floor.amount * floor.times / self.rates[floor.rate]
        made = next((seconds for timed, seconds in self.timed if timed.calls is floor.calls), None)
        if made is None:
            made, _ = median_seconds(floor.calls, self.timer)
            self.timed.append((floor, made))
        return made * floor.times


def run(
    cases: Sequence[GpuCase], device: torch.device, timer: Timer, rates: Mapping[str, float], ends: float = math.inf
) -> Iterator[Measurement | tuple[str, str]]:
    """Measures the cases one after the other until the time is over: what each gave, or (where, why not)."""
    for case in cases:
        if time.monotonic() > ends:
            yield "time", f"is over ahead of {case.operation}, {case.shape}, {case.precision}"
            return
        missing: dict[str, str] = {}
        try:
            with precision(case.precision):
                yield from measure(case, device, timer, rates, missing)
        except Exception as reason:  # inputs could not be made or measured
            missing[f"{case.operation}, {case.shape}, {case.precision}"] = f"{type(reason).__name__}: {reason}"
        yield from missing.items()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def text_of(m: Measurement) -> str:
    """A line on it."""
    replayed = "" if m.replayed_seconds is None else f" (replayed {m.replayed_seconds * 1e3:.4g})"
    wanted = "" if m.target is None else f", wanted {m.target:.2f}"
    figures = f"{m.seconds * 1e3:.4g} ms{replayed}, {m.floor_ratio:.2f} × the floor ({m.floor})"
    return f"{', '.join(m.group)}, {m.implementation}: {figures}{wanted}"


def describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": device.type}
    found = torch.cuda.get_device_properties(device)
    capability = f"{found.major}.{found.minor}"
    return {"name": found.name, "capability": capability, "mebibytes": found.total_memory // 2**20}


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "triton": triton.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", choices=["fused", "rivals"], help="our own kernels, or what stands beside them")
    chosen = parser.parse_args().cases
    if not torch.cuda.is_available():
        tell("figures", "no CUDA device: nothing is measured")
        return 0
    rates = facts.rates()
    if not rates:
        facts.main()
        rates = facts.rates()
    device = torch.device("cuda")
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    head = {"date": date, "device": describe_device(device), "versions": versions(), "sources": source_hashes()}
    tell("figures", f"{head['device']}, {head['versions']}", head=head)
    ends = time.monotonic() + float(os.environ.get("SECONDS_OF_STAGE", "1e9")) - 3
    wrong = False
    for made in run(FIGURES if chosen == "fused" else RIVALS, device, Events(), rates, ends):
        if isinstance(made, Measurement):
            tell("figures", text_of(made), measurement=asdict(made))
        else:
            wrong |= made[0].startswith(FUSED)
            tell("figures", f"without {made[0]}: {made[1][-300:]}", missing=list(made))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
