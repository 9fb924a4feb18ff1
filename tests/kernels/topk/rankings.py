"""What tests of the best k share: blocks of few scores, the begin of all scores sorted, and a comparison of bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from crossret_kernels.inputs import blocks as item_blocks
from crossret_kernels.topk import streamed as topk

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


@contextmanager
def blocks_of(scores: int, feature_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "BLOCK_SCORES", scores)
        patch.setattr(item_blocks, "BLOCK_BYTES", feature_bytes)
        yield


def sorted_scores(scores: Tensor, query: str, k: int) -> tuple[Tensor, Tensor]:
    """The oracle: Python's sort, which is stable, of every query's scores, NaN first."""
    rows = scores.T if query == "caption" else scores
    orders = []
    for row in rows.tolist():
        keys = [(False, 0.0) if math.isnan(score) else (True, -score) for score in row]
        orders.append(sorted(range(len(row)), key=keys.__getitem__)[:k])
    indices = torch.tensor(orders, dtype=torch.int64).view(rows.size(0), min(k, rows.size(1)))
    return rows.gather(1, indices), indices


def assert_same_bits(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert found[1].dtype == torch.int64
    assert found[1].tolist() == expected[1].tolist()
    assert found[0].dtype == expected[0].dtype
    bits = BITS[found[0].dtype]
    assert torch.equal(found[0].contiguous().view(bits), expected[0].contiguous().view(bits))
