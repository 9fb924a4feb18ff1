"""Calls of `maxsim_scores` by backend "triton": layouts, candidates, empty batches, top-k, far addresses, opcheck."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores
from crossret_kernels.gpu.sides import Side
from crossret_kernels.gpu.triton_launch import encoded
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.triton import call
from crossret_kernels.maxsim.triton.backward import store_gradients
from tests.interpreted.programs import programs_share_nothing
from tests.kernels.maxsim.checks import Calls, listed_or_all, randn


@pytest.fixture(scope="module")
def backend() -> str:
    return "triton"


class TestByLengths:
    """Calls that are cut up by their lengths, as large ones are."""

    test_layouts = Calls.test_layouts
    test_masks_and_items_without_rows = Calls.test_masks_and_items_without_rows

    @pytest.fixture(autouse=True)
    def by_lengths(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SumMax, "UNPLANNED_PRODUCTS", 0)


class TestCalls(Calls):
    """The checks of every backend, and some of Triton's operations."""

    @listed_or_all
    def test_lengths_stay_within_the_features(
        self, backend: str, listed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the host does not look at them: in a captured CUDA graph they change from one replay to the next."""
        memory = torch.full((2, 5, 6, 12), torch.nan)
        for side, seed in zip(memory, (1, 2), strict=True):
            side[1:4] = randn(3, 6, 12, seed=seed)
        lengths = torch.tensor([6, 2, 0]), torch.tensor([0, 6, 6])
        beyond = torch.tensor([50, 0, -3]), torch.tensor([-(2**40), 1, 2**40])
        looked_at = call.both_sides

        def not_looked_at(*arguments: Any) -> tuple[Side, ...]:
            return tuple(
                side._replace(counts=None, extents=side.extents + more)
                for side, more in zip(looked_at(*arguments), beyond, strict=True)
            )

        options: dict[str, Any] = {"normalize": True, "empty_score": -1.0, "backend": backend}
        options["pairs"] = torch.tensor([[0, 1], [2, 1], [1, 0], [0, 2], [0, 1]]) if listed else None
        made: list[tuple[Tensor, ...]] = []
        for both_sides in (looked_at, not_looked_at):
            monkeypatch.setattr(call, "both_sides", both_sides)
            sides = (
                [side[1:4].clone() for side in memory] if both_sides is looked_at else [side[1:4] for side in memory]
            )
            leaves = [side.detach().requires_grad_() for side in sides]
            scores, argmax = maxsim_argmax(*leaves, *lengths, **options)
            made.append((scores.detach(), argmax, *torch.autograd.grad(scores.sum(), leaves)))
        assert made[0][0].max() > -1
        assert all(torch.equal(once, again) for once, again in zip(*made, strict=True))

    @pytest.mark.parametrize(("direction", "pairs"), [("t2i", False), ("i2t", True)], ids=["all", "pairs"])
    def test_operations(self, backend: str, direction: str, pairs: bool) -> None:
        listed = torch.tensor([[0, 1], [2, 0], [0, 1], [1, 1]]) if pairs else None
        arguments: tuple[Any, ...] = (
            randn(3, 4, 8, seed=0).requires_grad_(), None, torch.tensor([3, 4, 1]), None,
            randn(13, 8, seed=1).requires_grad_(), torch.tensor([0, 6, 13]), None, None, listed, None,
        )  # fmt: skip
        scores, argmax, gradients = (
            getattr(torch.ops.crossret, f"maxsim_{name}").default
            for name in (f"scores_{backend}", f"argmax_{backend}", f"scores_{backend}_backward")
        )
        codes = (
            False,
            *MaxSimOptions(direction=direction, pooling="avg", normalize=True).codes,
        )  # of float32 that is multiplied as it is
        torch.library.opcheck(scores, (*arguments, *codes))
        torch.library.opcheck(argmax, (*arguments, *codes, 9))
        grads = randn(4, seed=2) if pairs else randn(3, 2, seed=2)
        plain = tuple(side.detach() if isinstance(side, Tensor) else side for side in arguments)
        torch.library.opcheck(gradients, (grads, *plain, *codes, True, pairs))


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
    store_ones[(1, 1, 1)](Out(out), Later(encoded(0)), rows, KIND=Columns(False, dim, dim))
    assert torch.equal(out[rows * dim :], torch.ones(2 * dim, dtype=torch.float16))


@listed_or_all
@pytest.mark.parametrize("context_pooling", ["max", "lse"])
def test_programs_share_nothing(listed: bool, context_pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several columns of features, and sums of several runs."""
    for name, value in (("LEAST_STEPS", 1), ("WIDTH", 32), ("SOFT_WIDTH", 32), ("ITEMS", 2), ("QUERIES", 16)):
        monkeypatch.setattr(SumMax, name, value)
    sides = [randn(7, 5, 40, seed=seed).requires_grad_() for seed in (1, 2)]
    pairs = torch.arange(14).view(7, 2) % 7 if listed else None
    options: dict[str, Any] = {"normalize": True, "context_pooling": context_pooling, "backend": "triton"}
    with programs_share_nothing():
        maxsim_scores(*sides, pairs=pairs, **options).sum().backward()
