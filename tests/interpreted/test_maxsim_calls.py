"""Calls of `maxsim_scores` by backend "triton": layouts, candidates, empty batches, top-k, far addresses, opcheck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, maxsim_topk
from tests.kernels.holes import Holes
from tests.kernels.strategies import Features

directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "sliced": lambda side: torch.cat([side, side], 1)[:, : side.size(1)],
    "transposed": lambda side: side.mT.contiguous().mT,
    "one row": lambda side: side[:1, :1].expand_as(side),
}


@directions
@pytest.mark.parametrize("layout", ["packed", "list", *STRIDES])
def test_layouts(direction: str, layout: str) -> None:
    change = STRIDES.get(layout, Tensor.clone)
    lengths = torch.tensor([2, 25, 1, 5]), torch.tensor([18, 1, 3])
    batch = Features(change(randn(4, 25, 16, seed=7)), change(randn(3, 18, 16, seed=8)), *lengths, None)
    options: dict[str, Any] = {"direction": direction, "return_argmax": True}
    arguments = batch.arguments("padded" if layout in STRIDES else layout)
    scores, argmax = maxsim_scores(*arguments, **options, backend="triton")
    expected, places = maxsim_scores(*batch.arguments(), **options, backend="reference")
    torch.testing.assert_close(scores, expected)
    if layout == "one row":  # all contexts are the same: which is best is a matter of rounding
        assert torch.equal(argmax < 0, places < 0)
    else:
        assert torch.equal(argmax, places)


@directions
def test_candidates(direction: str) -> None:
    regions, words = randn(4, 20, 8, seed=9), randn(3, 18, 8, seed=10)
    candidates = torch.tensor([[3, 0], [1, 1], [2, 3]] if direction == "t2i" else [[2], [0], [1], [1]])
    options: dict[str, Any] = {"direction": direction, "candidates": candidates, "return_argmax": True}
    scores, argmax = maxsim_scores(regions, words, backend="triton", **options)
    expected, places = maxsim_scores(regions, words, backend="reference", **options)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(argmax, places)


@directions
def test_nothing(direction: str) -> None:
    for n_images, n_captions in ((0, 2), (2, 0), (0, 0)):
        regions, words = torch.randn(n_images, 3, 4).requires_grad_(), torch.randn(n_captions, 5, 4).requires_grad_()
        scores, argmax = maxsim_scores(regions, words, direction=direction, return_argmax=True, backend="triton")
        assert argmax.shape == (n_images, n_captions, 5 if direction == "t2i" else 3)
        scores.sum().backward()
        for side in (regions, words):
            assert side.grad is not None
            assert not side.grad.any()
    regions = torch.randn(2, 3, 4).requires_grad_()
    scores = maxsim_scores(regions, regions, pairs=torch.zeros(0, 2, dtype=torch.int64), backend="triton")
    scores.sum().backward()
    assert regions.grad is not None
    assert not regions.grad.any()


def masked_sides() -> list[Holes]:
    """Items of which some have no rows, NaN where there are none."""
    lengths = [torch.tensor([4, 0, 19, 1, 7]), torch.tensor([0, 5, 2, 18])]
    return [Holes.of(randn(len(own), 19, 16, seed=7 + i), own, i) for i, own in enumerate(lengths)]


@directions
@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize("listed", [False, True], ids=["all", "pairs"])
@pytest.mark.parametrize("layout", ["masked", "one masked", "packed", "list", "lengths"])
def test_masks_and_items_without_rows(direction: str, pooling: str, listed: bool, layout: str) -> None:
    results = []
    for backend in ("triton", "reference"):
        sides = masked_sides()
        leaves = [side.values.clone().requires_grad_() for side in sides]
        options: dict[str, Any] = {"direction": direction, "pooling": pooling, "normalize": listed}
        options |= {"empty_score": -0.25, "return_argmax": True, "backend": backend}
        if listed:
            options["pairs"] = torch.tensor([[2, 3], [0, 0], [1, 0], [1, 2], [4, 1], [2, 3], [3, 2]])
        arguments: list[Any] = list(leaves)
        if layout == "lengths":
            for side, rows in zip(sides, ("region", "word"), strict=True):
                options[f"{rows}_lengths"] = side.mask.sum(1)
            leaves = arguments = [randn(*leaf.shape, seed=3).requires_grad_() for leaf in leaves]
        else:
            masked = {"masked": (0, 1), "one masked": (1,)}.get(layout, ())
            for own, (side, rows) in enumerate(zip(sides, ("region", "word"), strict=True)):
                if own in masked:
                    options[f"{rows}_mask"] = side.mask
                    continue
                values, offsets = leaves[own][side.mask], side.packed[1]
                arguments[own] = (values, offsets)
                if layout == "list":
                    arguments[own] = list(values.split(offsets.diff().tolist()))
        scores, argmax = maxsim_scores(*arguments, **options)
        weights = randn(*scores.shape, seed=5)
        results.append((scores, argmax, *torch.autograd.grad((scores * weights).sum(), leaves)))
    assert (results[0][0] == -0.25).any()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@directions
@pytest.mark.parametrize("query", ["caption", "image"])
def test_topk(direction: str, query: str) -> None:
    regions, words = torch.randint(-2, 3, (9, 5, 4)).float(), torch.randint(-2, 3, (7, 6, 4)).float()
    options: dict[str, Any] = {"direction": direction}
    scores = maxsim_scores(regions, words, backend="triton", **options)
    values, indices = (scores if query == "image" else scores.T).sort(dim=1, descending=True, stable=True)
    found = maxsim_topk(regions, words, k=4, query=query, backend="triton", **options)
    assert torch.equal(found[0], values[:, :4])
    assert torch.equal(found[1], indices[:, :4])


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


@pytest.mark.parametrize(("direction", "pairs"), [("t2i", False), ("i2t", True)], ids=["all", "pairs"])
def test_opcheck(direction: str, pairs: bool) -> None:
    listed = torch.tensor([[0, 1], [2, 0], [0, 1], [1, 1]]) if pairs else None
    arguments: tuple[Any, ...] = (
        randn(3, 4, 8, seed=0).requires_grad_(), None, torch.tensor([3, 4, 1]), None,
        randn(13, 8, seed=1).requires_grad_(), torch.tensor([0, 6, 13]), None, None, listed, None,
    )  # fmt: skip
    operations = torch.ops.crossret
    torch.library.opcheck(operations.maxsim_scores_triton.default, (*arguments, direction, "avg", True))
    torch.library.opcheck(operations.maxsim_argmax_triton.default, (*arguments, direction, True, 9))
    grads = randn(4, seed=2) if pairs else randn(3, 2, seed=2)
    plain = tuple(side.detach() if isinstance(side, Tensor) else side for side in arguments)
    options = (direction, "avg", True, True, pairs)
    torch.library.opcheck(operations.maxsim_scores_triton_backward.default, (grads, *plain, *options))
