"""Where the time of the headline calls goes, by torch's profiler: kernels by name, launches, the host's operations."""

from __future__ import annotations

import time

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.calls import CALLS_BY_NAME
from benchmarks.gpu.lines import tell

CALLS = 3
SHOWN = 12
ON_HOST = ("step 128", "Sum-Max 1x1000")  # calls of which the host's operations are shown, too


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    for name, prepare in CALLS_BY_NAME.items():
        if not on_gpu:
            continue
        try:
            tell("host", text_of(name, prepare(device)))
        except Exception as error:
            tell("host", f"{name}: FAILED {type(error).__name__}: {str(error)[-300:]}")
        torch.cuda.empty_cache()


def text_of(name: str, call) -> str:  # type: ignore[no-untyped-def]
    """One call's kernels, µs and how many launches of each; of small ones what the host did."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - begun) / CALLS * 1e6
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    events = seen.key_averages()
    kernels = sorted((e for e in events if e.self_device_time_total > 0 and e.self_cpu_time_total == 0),
                     key=lambda e: -e.self_device_time_total)  # fmt: skip
    total = sum(e.self_device_time_total for e in kernels) / CALLS
    launches = sum(e.count for e in kernels) / CALLS
    lines = [f"{name}: wall {wall:.1f} µs, kernels {total:.1f} µs in {launches:.0f} launches"]
    lines += [
        f"    {e.self_device_time_total / CALLS:10.1f} µs {e.count / CALLS:6.1f} × {e.key[:90]}"
        for e in kernels[:SHOWN]
    ]
    if any(part in name for part in ON_HOST):
        host = sorted((e for e in events if e.self_cpu_time_total > 0), key=lambda e: -e.self_cpu_time_total)
        lines += [
            f"    host {e.self_cpu_time_total / CALLS:8.1f} µs {e.count / CALLS:6.1f} × {e.key[:80]}"
            for e in host[:SHOWN]
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
