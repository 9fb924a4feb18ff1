"""Precision of a training's products of float32 on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Has a GPU make products of float32 in TF32, PyTorch's and those of scores, where wanted; else as they are set."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    if wanted:
        settings.fp32_precision = "tf32"
    try:
        yield
    finally:
        settings.fp32_precision = before
