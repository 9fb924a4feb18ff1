"""A program that calls every operation of backend "cuda", of every precision, forward and backward: all its kernels.

``python -m tests.gpu.every_operation``, under compute-sanitizer: `make gpu STAGES=sanitizer`. Shapes are small, for its
slower tools, ragged, and beyond a tile where kernels differ there. Features come from the host, whose copies every tool
sees. tests/simt runs it too, and checks that it leaves no operation out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from crossret_kernels import backends, scan_scores
from crossret_kernels.gpu.one_tile import wrong_assumptions
from crossret_kernels.gpu.tuning import CudaAttention
from tests.gpu.built import operations

PRECISIONS = {
    "tf32": (torch.float32, "tf32"),
    "bfloat16": (torch.bfloat16, "ieee"),
    "float16": (torch.float16, "ieee"),
}
BATCHES = (  # rows of images and of captions, and of features: within a tile; beyond one of queries, and of contexts
    ((5, 1, 12), (7, 3), 20),
    ((3, 2), (140, 1), 9),
    ((150, 2), (4, 2), 9),
)
PAIRS = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 1]])
SETTINGS: tuple[dict[str, Any], ...] = (
    {"raw_feature_norm": "softmax", "pooling": "lse"},
    {"raw_feature_norm": "clipped_l2norm", "pooling": "max", "normalize": True},
    {"raw_feature_norm": "no_norm", "pooling": "avg", "direction": "i2t"},
)


def features(rows: tuple[int, ...], dim: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Padded, NaN where no item has a row."""
    values = torch.randn(len(rows), max(rows), dim, generator=torch.Generator().manual_seed(seed))
    for item, length in zip(values, rows, strict=True):
        item[length:] = torch.nan
    return values.to(dtype).to(device).requires_grad_()


def score(device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    """Scores and gradients: all pairs and listed ones, few of them and many of an item."""
    for of_images, of_captions, dim in BATCHES:
        sides = features(of_images, dim, dtype, device, 0), features(of_captions, dim, dtype, device, 1)
        arguments = *sides, torch.tensor(of_images), torch.tensor(of_captions)
        for pairs in (None, PAIRS.to(device), PAIRS.repeat(5, 1).to(device)):
            chosen: dict[str, Any] = {"pairs": pairs, "backend": "cuda"}
            made = [scan_scores(*arguments, **options, **chosen) for options in SETTINGS]
            for scores in made:
                yield from (scores, *torch.autograd.grad(scores.sum(), sides))


def call_all(device: torch.device, precisions: Iterable[str] = PRECISIONS) -> None:
    """Everything, in every precision or these; results are looked at only for being numbers."""
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for dtype, precision in map(PRECISIONS.__getitem__, precisions):
            torch.backends.cuda.matmul.fp32_precision = precision
            for number, result in enumerate(score(device, dtype)):
                assert result.isfinite().all(), f"result {number} in {dtype}, {precision}"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def by_warpgroups(device: torch.device) -> None:
    """One tile, and scores, of what compute capability 9.0 alone has."""
    before, CudaAttention.WARPGROUPS = CudaAttention.WARPGROUPS, True
    try:
        assert not list(wrong_assumptions(device))
        for dtype in (torch.bfloat16, torch.float16):
            sides = features((36,) * 5, 72, dtype, device, 0), features((20,) * 14, 72, dtype, device, 1)
            assert scan_scores(*sides, backend="cuda").isfinite().all()
    finally:
        CudaAttention.WARPGROUPS = before


class Dispatched(TorchDispatchMode):
    """Sends all calls through torch's dispatcher, where a profile sees them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def left_out(device: torch.device) -> list[str]:
    """Operations that `call_all` does not call, by a profile of one precision, which takes longer than its calls."""
    profiled, *others = PRECISIONS
    with profile(activities=[ProfilerActivity.CPU]) as seen, Dispatched():
        call_all(device, [profiled])
        by_warpgroups(device)
    call_all(device, others)
    called = {event.key for event in seen.key_averages()}
    return sorted({name.partition(".")[0] for name in operations()} - called)


def main() -> None:
    if backends.CUDA_MISSING is not None:
        sys.exit(backends.CUDA_MISSING)
    call_all(torch.device("cuda"))
    if torch.cuda.get_device_capability() == (9, 0):
        by_warpgroups(torch.device("cuda"))
    torch.cuda.synchronize()
    print("every operation was called")


if __name__ == "__main__":
    main()
