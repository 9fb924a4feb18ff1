"""Calls of `maxsim_scores` by backend "triton": layouts, candidates, empty batches, top-k, far addresses, opcheck."""

from __future__ import annotations

from typing import Any, NamedTuple

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
from tests.kernels.maxsim_checks import ByLengths, GpuCalls, directions, listed_or_all, randn


@pytest.fixture(scope="module")
def backend() -> str:
    return "triton"


class TestCalls(GpuCalls): ...


class TestByLengths(ByLengths): ...


def far_apart(*shape: int, strides: tuple[int, ...]) -> Tensor:
    """Features in memory of which only they are ever touched."""
    elements = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
    memory = torch.from_numpy(np.memmap("/dev/zero", np.float16, "c", shape=(elements,)))
    return memory.as_strided(shape, strides).copy_(randn(*shape, seed=11))


@directions
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_offsets_beyond_32_bits(direction: str, listed: bool, layout: str) -> None:
    """Items 2³¹ elements apart, and rows that are so together."""
    far: Any = far_apart(2, 20, 16, strides=(2**31 + 32, 16, 1))
    if layout == "packed":
        far = far_apart(6, 16, strides=(2**29, 1))
    words = randn(3, 18, 16, seed=12).half().requires_grad_()
    results: list[tuple[Tensor, ...]] = []
    for own in (far.contiguous(), far):
        own.requires_grad_()
        features = own if layout == "padded" else (own, torch.tensor([0, 4, 6]))
        pairs = torch.tensor([[1, 1], [0, 0]]) if listed else None
        scores = maxsim_scores(features, words, direction=direction, pairs=pairs, normalize=True, backend="triton")
        results.append((scores, *torch.autograd.grad(scores.sum(), (own, words))))
    assert all(torch.equal(near, distant) for near, distant in zip(*results, strict=True))


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
