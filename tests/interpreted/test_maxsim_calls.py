"""Calls of `maxsim_scores` by backend "triton": layouts, candidates, empty batches, top-k, far addresses, opcheck."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels import maxsim_scores
from crossret_kernels.gpu.triton_launch import hidden
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.triton.backward import store_gradients
from tests.interpreted.programs import programs_share_nothing
from tests.kernels.maxsim_checks import ByLengths, GpuCalls, listed_or_all, randn


@pytest.fixture(scope="module")
def backend() -> str:
    return "triton"


class TestCalls(GpuCalls): ...


class TestByLengths(ByLengths): ...


class Out(NamedTuple):
    """Of `backward.Sums` where gradients go."""

    out: Tensor


class Later(NamedTuple):
    """Of `backward.Sizes` whether earlier parts have left something."""

    later: int


class Columns(NamedTuple):
    """Of a kernel's constants what storing takes."""

    NORMALIZE: bool
    WIDTH: int
    D: int


@triton.jit
def store_ones(sums, sizes, row, KIND: tl.constexpr):  # noqa: N803
    """Two rows of gradients, from `row` on."""
    ones = tl.full((2, KIND.WIDTH), 1, tl.float32)
    store_gradients(sums, ones, ones, sums, row, row, 2, sizes, 2, KIND)


def test_gradients_of_more_elements_than_32_bits_count() -> None:
    """2³¹ elements, all but 32 of which are never touched."""
    rows, dim = 2**27, 16
    out = torch.from_numpy(np.memmap("/dev/zero", np.float16, "c", shape=((rows + 2) * dim,)))
    store_ones[(1, 1, 1)](Out(out), Later(hidden(0)), rows, KIND=Columns(False, dim, dim))
    assert torch.equal(out[rows * dim :], torch.ones(2 * dim, dtype=torch.float16))


@listed_or_all
def test_programs_share_nothing(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several columns of features, and sums of several runs."""
    for name, value in (("LEAST_STEPS", 1), ("WIDTH", 32), ("ITEMS", 2), ("QUERIES", 16)):
        monkeypatch.setattr(SumMax, name, value)
    sides = [randn(7, 5, 40, seed=seed).requires_grad_() for seed in (1, 2)]
    pairs = torch.arange(14).view(7, 2) % 7 if listed else None
    with programs_share_nothing():
        maxsim_scores(*sides, normalize=True, pairs=pairs, backend="triton").sum().backward()
