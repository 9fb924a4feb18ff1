"""The device of the GPU tests, features on it, and the precisions that it multiplies in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.backends import CUDA_MISSING, INTERPRETED
from crossret_kernels.cross_attention.cuda.plan import most_attended_rows

DEVICE = torch.device("cuda")
TF32_UNIT = 4 * 2.0**-10
# By the precision of products: the features' dtype, and a few units in the last place of what is multiplied.
PRECISIONS = {
    "float32": (torch.float32, 16 * torch.finfo(torch.float32).eps),
    "tf32": (torch.float32, TF32_UNIT),
    "bfloat16": (torch.bfloat16, TF32_UNIT),  # features are exact; what follows their product is in TF32
    "float16": (torch.float16, TF32_UNIT),
}

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or INTERPRETED, reason="needs a GPU that Triton compiles for"),
]
needs_cuda_library = pytest.mark.skipif(CUDA_MISSING is not None, reason=str(CUDA_MISSING))
backends = pytest.mark.parametrize("backend", ["triton", pytest.param("cuda", marks=needs_cuda_library)])
# Precisions of stacked cross attention with each backend that multiplies in them.
attention_precisions = pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "triton") for name in PRECISIONS),
        *(pytest.param(name, "cuda", marks=needs_cuda_library) for name in PRECISIONS if name != "float32"),
    ],
)
# Scores with each backend that has kernels of them.
scorers = pytest.mark.parametrize(
    ("function", "backend"),
    [(scan_scores, "triton"), (maxsim_scores, "triton"), pytest.param(scan_scores, "cuda", marks=needs_cuda_library)],
)


def skip_if_too_long(backend: str, rows: tuple[int, int], direction: str = "t2i", gradients: bool = True) -> None:
    """Of images and of captions, for "cuda" to attend to them on this GPU: whether it refuses is a test of its own."""
    most = most_attended_rows(DEVICE, gradients)
    if backend == "cuda" and rows[direction == "i2t"] > most:
        pytest.skip(f"on this GPU attended items have up to {most} rows")


@contextmanager
def precision(name: str) -> Iterator[torch.dtype]:
    """Whether float32 features may be multiplied in TF32, for the time being; gives the features' dtype."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        yield PRECISIONS[name][0]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fresh features on the device."""
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE).to(dtype)


def lengths(count: int, shortest: int, longest: int, seed: int = 0) -> Tensor:
    """Of items, on the host."""
    return torch.randint(shortest, longest + 1, (count,), generator=torch.Generator().manual_seed(seed))


def offsets(of_items: Tensor) -> Tensor:
    """Of packed items, on the host."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), of_items.cumsum(0)])
