"""`pairwise_scores`: a scorer that the package does not have, against itself over all pairs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crossret_kernels import pairwise_scores
from tests.kernels.told import told

N_IMAGES, N_CAPTIONS, R, W, D = 5, 4, 6, 7, 8
LENGTHS = torch.tensor([6, 1, 3, 4, 2]), torch.tensor([2, 7, 1, 5])
PAIRS = torch.tensor([[4, 1], [0, 0], [0, 3], [4, 1], [2, 2]])
SMALL = 3 * 1000  # with bytes_per_pair=1000: three pairs at a time


class SimilarityVectors(nn.Module):
    """SGRAF-like: similarity vectors |a − b|² of words and what they attend to, filtered by a small network."""

    def __init__(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.vector, self.hidden, self.last = nn.Linear(D, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.dropout = nn.Dropout(dropout)
        self.to(dtype)

    def forward(self, regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor) -> Tensor:
        logits = (words @ regions.mT).masked_fill(~region_mask[:, None], -torch.inf)
        attended = torch.softmax(3.0 * logits, -1) @ regions
        vectors = self.vector((words - attended).square())
        vectors = self.dropout(torch.relu(self.hidden(vectors)) + vectors)
        mean = vectors.masked_fill(~word_mask[..., None], 0).sum(1) / word_mask.sum(1, keepdim=True)
        scores: Tensor = torch.tanh(self.last(mean)).squeeze(-1)
        return scores


class Watched(SimilarityVectors):
    """The same, which looks at what it gets and counts the pairs of every block."""

    def __init__(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        super().__init__(dtype, dropout)
        self.blocks: list[int] = []

    def forward(self, regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor) -> Tensor:
        self.blocks.append(len(regions))
        assert regions.shape[0] == words.shape[0]
        assert region_mask.shape == regions.shape[:2] and word_mask.shape == words.shape[:2]
        assert not regions[~region_mask].any() and not words[~word_mask].any()
        return super().forward(regions, region_mask, words, word_mask)


def sides(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((N_IMAGES, R, D), (N_CAPTIONS, W, D))
    regions, words = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    for side, lengths in zip((regions, words), LENGTHS, strict=True):
        side[torch.arange(side.size(1)) >= lengths[:, None]] = torch.nan  # which is never read
    return regions, words


def masks() -> tuple[Tensor, Tensor]:
    first, second = (torch.arange(n) < lengths[:, None] for n, lengths in zip((R, W), LENGTHS, strict=True))
    return first, second


def at_once(scorer: nn.Module, regions: Tensor, words: Tensor, pairs: Tensor) -> Tensor:
    """Every pair by one call."""
    (v_mask, e_mask), (i, c) = masks(), pairs.T
    v, e = regions.masked_fill(~v_mask[..., None], 0), words.masked_fill(~e_mask[..., None], 0)
    scores: Tensor = scorer(v[i], v_mask[i], e[c], e_mask[c])
    return scores


def laid_out(layout: str, leaves: tuple[Tensor, Tensor]) -> tuple[tuple[Any, Any], dict[str, Any]]:
    if layout == "lengths":
        return leaves, {"region_lengths": LENGTHS[0], "word_lengths": LENGTHS[1]}
    if layout == "masks":
        return leaves, {"region_mask": masks()[0], "word_mask": masks()[1]}
    if layout == "packed":
        first, second = (
            (side[mask], torch.tensor([0, *lengths]).cumsum(0))
            for side, mask, lengths in zip(leaves, masks(), LENGTHS, strict=True)
        )
        return (first, second), {}
    first, second = ([x[:n] for x, n in zip(side, n, strict=True)] for side, n in zip(leaves, LENGTHS, strict=True))
    return (first, second), {}


def leaves_of(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    regions, words = sides(dtype)
    return regions.requires_grad_(), words.requires_grad_()


def every_pair() -> Tensor:
    return torch.cartesian_prod(torch.arange(N_IMAGES), torch.arange(N_CAPTIONS))


SELECTIONS: dict[str, tuple[dict[str, Any], Tensor, tuple[int, ...]]] = {
    "all": ({}, every_pair(), (N_IMAGES, N_CAPTIONS)),
    "pairs": ({"pairs": PAIRS}, PAIRS, (len(PAIRS),)),
    "candidates": (
        {"candidates": torch.tensor([[4, 0], [2, 2], [1, 3], [0, 0]])},
        torch.tensor([[4, 0], [0, 0], [2, 1], [2, 1], [1, 2], [3, 2], [0, 3], [0, 3]]),
        (N_CAPTIONS, 2),
    ),
}


@pytest.mark.parametrize("layout", ["lengths", "masks", "packed", "lists"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_scores_and_gradients_are_those_of_all_pairs_at_once(layout: str, selection: str) -> None:
    options, pairs, shape = SELECTIONS[selection]
    scorer, leaves = Watched(), leaves_of()
    given, lengths = laid_out(layout, leaves)
    scores = pairwise_scores(*given, scorer, **lengths, **options, workspace_bytes=SMALL, bytes_per_pair=1000)
    assert scores.shape == shape
    assert len(scorer.blocks) > 1
    expected = at_once(scorer, *leaves, pairs)
    torch.testing.assert_close(scores.flatten(), expected, rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, len(pairs) + 1)
    wanted = (*leaves, *scorer.parameters())
    ours = torch.autograd.grad((scores.flatten() * weights).sum(), wanted)
    theirs = torch.autograd.grad((expected * weights).sum(), wanted)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("stated", [True, False])
def test_blocks_stay_within_the_workspace(selection: str, stated: bool) -> None:
    """As many pairs as fit in, by what the caller states or by the documented estimate; forwards and backwards."""
    options, pairs, _ = SELECTIONS[selection]
    scorer, leaves = Watched(torch.float32), leaves_of(torch.float32)
    estimate = 4 * (3 * (R + W) * D + 8 * R * W)
    bound = {"workspace_bytes": SMALL, "bytes_per_pair": 1000} if stated else {"workspace_bytes": 3 * estimate + 1}
    given, lengths = laid_out("lengths", leaves)
    scores = pairwise_scores(*given, scorer, **lengths, **options, **bound)
    forwards = len(scorer.blocks)
    scores.sum().backward()
    assert len(scorer.blocks) == 2 * forwards  # each made twice, and nothing kept
    assert max(scorer.blocks) == 3 and sum(scorer.blocks) == 2 * len(pairs)
    scorer.blocks.clear()
    pairwise_scores(*given, scorer, **lengths, **options, workspace_bytes=np.int64(1))
    assert scorer.blocks == [1] * len(pairs)


def test_nothing_is_kept_for_the_backward_pass_but_the_inputs() -> None:
    regions, words = (side.nan_to_num() for side in sides())
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().data_ptr())  # 0 of an empty one
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pairwise_scores(regions.requires_grad_(), words, SimilarityVectors(), workspace_bytes=1)
    assert set(kept) - {0} <= {side.untyped_storage().data_ptr() for side in (regions, words)}


def test_dropout_is_drawn_alike_in_the_backward_pass() -> None:
    """The difference of two scores that share their draws is exact: gradients are those of what was returned."""
    scorer, leaves = Watched(dropout=0.5), leaves_of()
    given, lengths = laid_out("lengths", leaves)
    step = torch.randn(5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def scores() -> Tensor:
        torch.manual_seed(3)
        return pairwise_scores(*given, scorer, **lengths, workspace_bytes=SMALL, bytes_per_pair=1000)

    made = scores().sum()
    torch.manual_seed(4)
    (gradient,) = torch.autograd.grad(made, scorer.hidden.bias)
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            scorer.hidden.bias += sign * 1e-6 * step
            values.append(scores().sum())
            scorer.hidden.bias -= sign * 1e-6 * step
    torch.testing.assert_close((values[0] - values[1]) / 2e-6, gradient @ step, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_empty_items_score_what_is_asked(selection: str) -> None:
    options, pairs, _ = SELECTIONS[selection]
    scorer, leaves = Watched(), leaves_of()
    lengths = [own.clone() for own in LENGTHS]
    lengths[0][4] = lengths[1][0] = 0
    scores = pairwise_scores(
        *leaves, scorer, *lengths, **options, empty_score=-torch.inf, workspace_bytes=SMALL, bytes_per_pair=1000
    ).flatten()
    empty = (pairs[:, 0] == 4) | (pairs[:, 1] == 0)
    assert (scores[empty] == -torch.inf).all()
    expected = at_once(scorer, *leaves, pairs)[~empty]
    torch.testing.assert_close(scores[~empty], expected)
    wanted = (*leaves, *scorer.parameters())
    ours = torch.autograd.grad(scores[~empty].sum(), wanted)
    for one, other in zip(ours, torch.autograd.grad(expected.sum(), wanted), strict=True):
        torch.testing.assert_close(one, other.nan_to_num())


@pytest.mark.parametrize("counts", [(0, 3), (3, 0), (0, 0)])
def test_no_pairs(counts: tuple[int, int]) -> None:
    scorer = SimilarityVectors()
    leaves = [torch.zeros(n, 2, D, dtype=torch.float64, requires_grad=True) for n in counts]
    scores = pairwise_scores(*leaves, scorer)
    assert scores.shape == counts
    scores.sum().backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in (*leaves, *scorer.parameters()))
    assert pairwise_scores(*leaves, scorer, pairs=torch.zeros(0, 2, dtype=torch.int64)).shape == (0,)


def test_features_of_other_lengths_and_narrow_scores() -> None:
    """Each side's rows are as long as they are; scores are at least float32."""
    regions, words = torch.randn(3, 2, 5).bfloat16(), torch.randn(2, 4, 9).bfloat16()
    scores = pairwise_scores(regions, words, lambda v, _, e, __: v.sum((1, 2)) * e.sum((1, 2)))
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, (regions.sum((1, 2))[:, None] * words.sum((1, 2))).float())


def test_gradients_of_half_precision_are_summed_in_float32() -> None:
    """Of 300 pairs, each in a block of its own: from 256 on 1 is too little to be added in bfloat16."""
    regions, words = (torch.ones(n, 1, 1, dtype=torch.bfloat16, requires_grad=True) for n in (1, 300))
    seen: set[torch.dtype] = set()

    def scorer(*block: Tensor) -> Tensor:
        seen.update((block[0].dtype, block[2].dtype))
        return block[0].sum((1, 2)) * block[2].sum((1, 2))

    pairwise_scores(regions, words, scorer, workspace_bytes=1).sum().backward()
    assert seen == {torch.bfloat16}
    assert regions.grad is not None and regions.grad.item() == 300


REGIONS, WORDS = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
MISTAKES: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, TypeError, "scorer must be callable, not NoneType"),
    (lambda *block: block[0], {}, ValueError, "scorer must return a score for each of 4 pairs, got shape (4, 3, 4)"),
    (lambda *block: block[1][:, 0], {}, TypeError, "scorer must return a floating-point tensor, not torch.bool"),
    (
        lambda *block: torch.empty(len(block[0]), device="meta"),
        {},
        ValueError,
        "scorer returned scores on meta but regions are on cpu",
    ),
    (max, {"workspace_bytes": 0}, ValueError, "workspace_bytes must be at least 1, not 0"),
    (max, {"bytes_per_pair": 2.0}, TypeError, "bytes_per_pair must be an integer, not float"),
]
test_mistakes_are_named = told(
    lambda scorer, options: pairwise_scores(REGIONS, WORDS, scorer, **options), {case[-1]: case for case in MISTAKES}
)
