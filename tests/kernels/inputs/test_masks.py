"""Masks: rows anywhere score as the same rows packed, on every backend, and what lies in the holes is never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    attention_pool,
    attention_pool_weights,
    gated_attention_weights,
    heterogeneous_attention_weights,
    maxsim_argmax,
    maxsim_scores,
    maxsim_topk,
    scan_attention,
    scan_scores,
    scan_topk,
)
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.holes import Holes
from tests.kernels.told import told

DTYPES = {"cpu": torch.float32, "torch": torch.float64, "reference": torch.float64}
PAIRS = torch.tensor([[2, 1], [0, 0], [2, 3], [1, 1], [2, 1]])
LENGTHS = (torch.tensor([5, 1, 4]), torch.tensor([6, 3, 1, 2]))
DIM = 8

backends = pytest.mark.parametrize("backend", DTYPES)
functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


def both_sides(dtype: torch.dtype = torch.float32) -> tuple[Holes, Holes]:
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(len(lengths), int(lengths.max()), DIM, generator=generator) for lengths in LENGTHS]
    images, captions = (Holes.of(*side, seed) for seed, side in enumerate(zip(sides, LENGTHS, strict=True)))
    return Holes(images.values.to(dtype), images.mask), Holes(captions.values.to(dtype), captions.mask)


# --- what is returned beside scores is in terms of the padded places


def rectangles(images: Holes, captions: Holes, direction: str) -> Tensor:
    """(P, Q, C), where queries and contexts of the pairs have rows."""
    queries, contexts = (captions.mask[PAIRS[:, 1]], images.mask[PAIRS[:, 0]])[:: 1 if direction == "t2i" else -1]
    return queries[:, :, None] & contexts[:, None, :]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("function", [scan_attention, heterogeneous_attention_weights])
def test_attention_has_the_masks_places(function: Callable[..., Any], backend: str, direction: str) -> None:
    images, captions = both_sides(torch.float64)
    options: dict[str, Any] = {"direction": direction, "pairs": PAIRS, "backend": backend}
    if function is heterogeneous_attention_weights:
        options["layers"] = make_layers(1, DIM, torch.float64)
    ours = function(images.values, captions.values, region_mask=images.mask, word_mask=captions.mask, **options)
    theirs = function(images.packed, captions.packed, **options)
    where = rectangles(images, captions, direction)
    queries = where.any(2)
    assert ours[1].shape == where.shape
    assert ours[1][~where].count_nonzero() == 0 and ours[2][~queries].count_nonzero() == 0
    torch.testing.assert_close(ours[0], theirs[0])
    for pair in range(len(PAIRS)):
        q, c = int(queries[pair].sum()), int(where[pair].any(0).sum())
        torch.testing.assert_close(ours[1][pair][where[pair]].view(q, c), theirs[1][pair, :q, :c])
        torch.testing.assert_close(ours[2][pair][queries[pair]], theirs[2][pair, :q])


@backends
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_argmax_names_the_masks_places(backend: str, direction: str, pairs: Tensor | None) -> None:
    images, captions = both_sides(DTYPES[backend])
    masks = {"region_mask": images.mask, "word_mask": captions.mask}
    options: dict[str, Any] = {"direction": direction, "pairs": pairs, "backend": backend}
    scores, argmax = maxsim_argmax(images.values, captions.values, **masks, **options)
    torch.testing.assert_close(scores, maxsim_scores(images.packed, captions.packed, **options))
    where = torch.cartesian_prod(torch.arange(3), torch.arange(4)) if pairs is None else pairs
    for (i, c), row in zip(where.tolist(), argmax.flatten(0, -2), strict=True):
        similarities = images.values[i] @ captions.values[c].T
        similarities = similarities if direction == "t2i" else similarities.T
        contexts, queries = (images.mask[i], captions.mask[c])[:: 1 if direction == "t2i" else -1]
        best = similarities.masked_fill(~contexts[:, None], -torch.inf)[:, queries].argmax(0)
        assert row[queries].tolist() == best.tolist()
        assert (row[~queries] == -1).all()


# --- the other operations


GENERATOR = torch.Generator().manual_seed(3)
CONTEXTS = [torch.randn(n, 2, DIM, generator=GENERATOR) for n in (3, 4)]
PARAMETERS = gated_parameters(DIM, DIM, 5, 6, 7, GENERATOR)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_gated_weights_have_the_masks_places(backend: str) -> None:
    images, captions = both_sides(torch.float64)
    contexts = dict(zip(("region_contexts", "word_contexts"), (x.double() for x in CONTEXTS), strict=True))
    options: dict[str, Any] = {
        **contexts,
        "parameters": PARAMETERS.to(torch.float64),
        "pairs": PAIRS,
        "backend": backend,
    }
    masks = {"region_mask": images.mask, "word_mask": captions.mask}
    ours = gated_attention_weights(images.values, captions.values, **masks, **options)
    theirs = gated_attention_weights(images.packed, captions.packed, **options)
    masks_of_pairs = images.mask[PAIRS[:, 0]], captions.mask[PAIRS[:, 1]]
    for weights, packed, mask in zip(ours[1:], theirs[1:], masks_of_pairs, strict=True):
        assert weights.shape == mask.shape and weights[~mask].count_nonzero() == 0
        for row, other, valid in zip(weights, packed, mask, strict=True):
            torch.testing.assert_close(row[valid], other[: int(valid.sum())])


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_pooled_rows_of_a_mask_are_those_of_packed_ones(backend: str) -> None:
    side, _ = both_sides(torch.float64)
    logits = Holes(torch.where(side.mask[:, :, None], torch.randn(*side.mask.shape, 2).double(), torch.nan), side.mask)
    leaves = [x.values.clone().requires_grad_() for x in (side, logits)]
    rows = [x.packed[0].requires_grad_() for x in (side, logits)]
    pooled, weights = attention_pool_weights(*leaves, mask=side.mask, backend=backend)
    expected = attention_pool((rows[0], side.packed[1]), rows[1], backend=backend)
    torch.testing.assert_close(pooled, expected)
    assert weights.shape == (3, 2, side.mask.size(1))
    assert weights.mT[~side.mask].count_nonzero() == 0
    for result in (pooled, expected):
        result.square().sum().backward()
    for leaf, row in zip(leaves, rows, strict=True):
        assert leaf.grad is not None and row.grad is not None
        assert leaf.grad[~side.mask].count_nonzero() == 0
        torch.testing.assert_close(leaf.grad[side.mask], row.grad)


@pytest.mark.parametrize("best", [scan_topk, maxsim_topk])
@pytest.mark.parametrize("query", ["caption", "image"])
@pytest.mark.parametrize("array", [False, True], ids=["tensors", "arrays"])
def test_topk_of_masked_rows(best: Callable[..., Any], query: str, array: bool) -> None:
    images, captions = both_sides()
    expected = best(images.packed, captions.packed, k=2, query=query)
    arguments = [images.values, captions.values, images.mask, captions.mask]
    regions, words, region_mask, word_mask = (x.numpy() for x in arguments) if array else arguments
    found = best(regions, words, k=2, query=query, region_mask=region_mask, word_mask=word_mask)
    torch.testing.assert_close(found, expected)


# --- torch.compile, and mistakes


@functions
@pytest.mark.parametrize(
    ("backend", "compiler", "pairs"),
    [("cpu", "aot_eager", None), ("torch", "eager", None), ("torch", "eager", PAIRS)],
    ids=["cpu", "torch", "torch, pairs"],
)
def test_whole_graphs_take_masks(
    function: Callable[..., Tensor], backend: str, compiler: str, pairs: Tensor | None
) -> None:
    torch.compiler.reset()

    def scores(regions: Tensor, words: Tensor, region_mask: Tensor, word_mask: Tensor) -> Tensor:
        return function(
            regions, words, region_mask=region_mask, word_mask=word_mask, pairs=pairs, empty_score=-1.0, backend=backend
        )

    images, captions = both_sides()
    region_mask = images.mask.clone()
    region_mask[1] = False
    results = []
    for call in (scores, torch.compile(scores, fullgraph=True, backend=compiler)):
        leaves = [images.values.clone().requires_grad_(), captions.values.clone().requires_grad_()]
        made = call(*leaves, region_mask, captions.mask)
        results.append((made, *torch.autograd.grad(made.sum(), leaves)))
    torch.testing.assert_close(*results)


MASK = torch.ones(3, 5, dtype=torch.bool)
HOLE = torch.tensor([[True] * 5, [False] * 5, [True] * 5])
REGIONS, WORDS = torch.randn(3, 5, DIM), torch.randn(4, 6, DIM)
MISTAKES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "dimensions": (REGIONS, {"region_mask": MASK[0]}, ValueError, "region_mask must have shape (n, L) = (3, 5), got"),
    "dtype": (REGIONS, {"region_mask": MASK.int()}, TypeError, "region_mask must be bool, True where regions hold a"),
    "list": (REGIONS, {"region_mask": MASK.tolist()}, TypeError, "region_mask must be a bool tensor, not list"),
    "sparse": (REGIONS, {"region_mask": MASK.to_sparse()}, TypeError, "region_mask must be a dense tensor"),
    "empty": (REGIONS, {"region_mask": HOLE}, ValueError, "region_mask[1] has no True: every image needs at least one"),
    "lengths too": (REGIONS, {"region_mask": MASK, "region_lengths": [5, 5, 5]}, ValueError,
                    "region_lengths and region_mask exclude each other"),
    "packed": ((REGIONS[0], torch.tensor([0, 5])), {"region_mask": MASK}, ValueError,
               "region_mask goes with padded regions only"),
    "words": (REGIONS, {"word_mask": MASK}, ValueError, "word_mask must have shape (n, L) = (4, 6), got (3, 5)"),
}  # fmt: skip
test_mistakes_are_named = told(
    lambda function, regions, options: function(regions, WORDS, **options), MISTAKES, scan_scores, maxsim_scores
)
