"""Precisions by name, and as many sets of inputs as keep a call from finding its own in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from benchmarks.gpu.timing import copies

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}

Inputs = TypeVar("Inputs")


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Whether float32 features are multiplied in TF32, for the time being."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def rotated(first: Inputs, input_bytes: int, clone: Callable[[Inputs], Inputs]) -> list[Inputs]:
    """The inputs, and copies of them."""
    return [first, *(clone(first) for _ in range(copies(input_bytes) - 1))]
