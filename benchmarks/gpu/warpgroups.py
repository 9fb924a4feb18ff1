"""Warpgroups on a card of compute capability 9.0, ahead of all else: whether its instructions do what the kernel takes
them for, whether scores are those of the kernel for all cards, and how long either takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.inputs import DTYPES, precision
from benchmarks.gpu.lines import tell
from benchmarks.gpu.timing import Events, median_seconds
from crossret_kernels import backends, scan_scores
from crossret_kernels.gpu.one_tile import wrong_assumptions
from crossret_kernels.gpu.tuning import CudaAttention

SCORED = (61, 36), (300, 20)  # images and captions, and their rows
TIMED = (1000, 36), (5000, 20)
DIM, NEARLY = 1024, 3e-5  # scores differ by how products are summed up alone
SMALL = 2**23  # bytes of a part's rows: lengths decide, and no slot is empty
KERNEL = "attend_by_warpgroups"


def drawn(sizes: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype, device: torch.device) -> list[Any]:
    """Images, captions, None and the captions' lengths."""
    draw = torch.Generator(device).manual_seed(0)
    sides = [torch.randn(*size, DIM, generator=draw, device=device).to(dtype) for size in sizes]
    (n_captions, most) = sizes[1]
    return [*sides, None, torch.randint(6, most + 1, (n_captions,), generator=torch.Generator().manual_seed(0))]


def scores(arguments: list[Any], direction: str, warpgroups: bool) -> Tensor:
    CudaAttention.WARPGROUPS = warpgroups
    return scan_scores(*arguments, direction=direction, backend="cuda")


def kernels_of(arguments: list[Any], direction: str) -> set[str]:
    """Names of the kernels that a call by warpgroups launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        scores(arguments, direction, True)
        torch.cuda.synchronize()
    return {event.key for event in profile.key_averages()}


def wrong_scores(device: torch.device) -> Iterator[str]:
    """A line for each dtype and direction whose scores are not the usual kernel's, or not made by warpgroups."""
    usual, CudaAttention.ROW_BYTES = CudaAttention.ROW_BYTES, SMALL
    for name, dtype in DTYPES.items():
        if name == "float32":  # which "cuda" does not multiply in
            continue
        arguments = drawn(SCORED, dtype, device)
        for direction in ("t2i", "i2t"):
            with precision(name):
                ours, expected = (scores(arguments, direction, warpgroups) for warpgroups in (True, False))
                launched = kernels_of(arguments, direction)
            if not any(KERNEL in kernel for kernel in launched):
                yield f"{name} {direction}: no warpgroups multiply, but {', '.join(sorted(launched))}"
            error = float((ours - expected).abs().max())
            print(f"{name} {direction}: off by {error:.2g}", flush=True)
            if not error <= NEARLY:
                yield f"{name} {direction}: scores by warpgroups are off by {error:.2g}"
    CudaAttention.ROW_BYTES = usual


def main() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return tell("warpgroups", "no device of compute capability 9.0: warpgroups multiply nothing")
    if backends.CUDA_MISSING is not None:
        return tell("warpgroups", f"warpgroups multiply nothing: {backends.CUDA_MISSING}")
    if "9.0" not in backends.CUDA_ARCHITECTURES:
        return tell("warpgroups", f"warpgroups multiply nothing: it is built for {backends.CUDA_ARCHITECTURES}")
    device = torch.device("cuda")
    for wrong in (wrong_assumptions, wrong_scores):
        found = list(wrong(device))
        for line in found:
            tell("warpgroups", line, right=False)
        if found:
            sys.exit(1)
    tell("warpgroups", "copies and products of warpgroups are what their kernel takes them for, and so are its scores")
    timer = Events()
    for name, dtype in DTYPES.items():
        if name == "float32":
            continue
        arguments = drawn(TIMED, dtype, device)
        for direction in ("t2i", "i2t"):
            with precision(name):
                seconds = [
                    median_seconds([partial(scores, arguments, direction, own)], timer)[0] for own in (True, False)
                ]
            text = f"{name} {direction} 1,000 × 5,000: {seconds[0] * 1e3:.1f} ms by warpgroups"
            tell("warpgroups", f"{text}, {seconds[1] * 1e3:.1f} without", warpgroups={f"{name} {direction}": seconds})


if __name__ == "__main__":
    main()
