"""`scan_attend_scores`: a scorer of attended vectors, against itself on `scan_attend` of every pair alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossret_kernels import ScanAttended, scan_attend, scan_attend_scores
from tests.kernels.told import told

N_IMAGES, N_CAPTIONS, R, W, D = 5, 4, 6, 7, 8
LENGTHS = torch.tensor([6, 1, 3, 4, 2]), torch.tensor([2, 7, 1, 5])
PAIRS = torch.tensor([[4, 1], [0, 0], [0, 3], [4, 1], [2, 2]])
EVERY = torch.cartesian_prod(torch.arange(N_IMAGES), torch.arange(N_CAPTIONS))
THREE = {"workspace_bytes": 3000, "bytes_per_pair": 1000}  # pairs at a time


class Scorer(nn.Module):
    """Similarity vectors of queries, each item's own vector beside them; it counts the pairs of every block."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.vector, self.last = nn.Linear(D, 5), nn.Linear(5, 1)
            self.images, self.captions = nn.Embedding(N_IMAGES, 5), nn.Embedding(N_CAPTIONS, 5)
        self.to(dtype)
        self.blocks: list[int] = []

    def forward(self, made: ScanAttended, queries: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
        self.blocks.append(len(pairs))
        assert made.attended.shape == queries.shape and made.relevances.shape == mask.shape == queries.shape[:2]
        assert not queries[~mask].any() and not made.attended[~mask].any()
        vectors = torch.tanh(self.vector((made.attended - queries).square())) * made.relevances[..., None]
        vectors = vectors + made.weights.square().sum(-1, keepdim=True)
        of_items = self.images(pairs[:, 0]) - self.captions(pairs[:, 1])
        mean = (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        scores: Tensor = self.last(mean * of_items).squeeze(-1) + made.scores
        return scores


def sides(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(n, rows, D, generator=generator) for n, rows in ((N_IMAGES, R), (N_CAPTIONS, W))]
    for side, lengths in zip(made, LENGTHS, strict=True):
        side[torch.arange(side.size(1)) >= lengths[:, None]] = torch.nan  # which is never read
    return [side.to(dtype).requires_grad_() for side in made]


def laid_out(layout: str, leaves: list[Tensor]) -> tuple[list[Any], dict[str, Any]]:
    masks = [torch.arange(x.size(1)) < n[:, None] for x, n in zip(leaves, LENGTHS, strict=True)]
    if layout == "lengths":
        return leaves, {"region_lengths": LENGTHS[0], "word_lengths": LENGTHS[1]}
    if layout == "masks":
        return leaves, {"region_mask": masks[0], "word_mask": masks[1]}
    if layout == "packed":
        offsets = [torch.tensor([0, *lengths]).cumsum(0) for lengths in LENGTHS]
        return [(x[mask], own) for x, mask, own in zip(leaves, masks, offsets, strict=True)], {}
    return [[x[:n] for x, n in zip(side, own, strict=True)] for side, own in zip(leaves, LENGTHS, strict=True)], {}


def one_by_one(scorer: nn.Module, leaves: list[Tensor], pairs: Tensor, **options: Any) -> Tensor:
    """Every pair by a call of its own, of the rows that it has."""
    scores = []
    for i, c in pairs.tolist():
        region, word = leaves[0][i, : LENGTHS[0][i]], leaves[1][c, : LENGTHS[1][c]]
        made = scan_attend(region[None], word[None], pairs=torch.zeros(1, 2, dtype=torch.int64), **options)
        queries = word if options["direction"] == "t2i" else region
        queries = F.normalize(queries, dim=-1) if options["normalize"] else queries
        mask = torch.ones(1, len(queries), dtype=torch.bool)
        scores.append(scorer(made, queries[None], mask, torch.tensor([[i, c]])))
    return torch.cat(scores)


SELECTIONS: dict[str, tuple[dict[str, Any], Tensor, tuple[int, ...]]] = {
    "all": ({}, EVERY, (N_IMAGES, N_CAPTIONS)),
    "pairs": ({"pairs": PAIRS}, PAIRS, (len(PAIRS),)),
    "candidates": (
        {"candidates": torch.tensor([[4, 0], [2, 2], [1, 3], [0, 0]]), "query": "caption"},
        torch.tensor([[4, 0], [0, 0], [2, 1], [2, 1], [1, 2], [3, 2], [0, 3], [0, 3]]),
        (N_CAPTIONS, 2),
    ),
}


@pytest.mark.parametrize(("direction", "normalize"), [("t2i", False), ("i2t", True)])
@pytest.mark.parametrize("layout", ["lengths", "masks", "packed", "lists"])
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_and_gradients_are_those_of_every_pair_alone(
    dtype: torch.dtype, selection: str, layout: str, direction: str, normalize: bool
) -> None:
    """Gradients of features and of the scorer's parameters; by PyTorch operations in float64, else by kernels."""
    more, pairs, shape = SELECTIONS[selection]
    scorer, leaves = Scorer(dtype), sides(dtype)
    given, lengths = laid_out(layout, leaves)
    options: dict[str, Any] = {"direction": direction, "normalize": normalize}
    scores = scan_attend_scores(*given, scorer, **lengths, **more, **THREE, **options)
    assert scores.shape == shape and max(scorer.blocks) <= 3 and sum(scorer.blocks) == len(pairs)
    expected = one_by_one(scorer, leaves, pairs, **options)
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(scores.flatten(), expected, **close)
    weights = torch.arange(1.0, len(pairs) + 1).to(dtype)
    wanted = (*leaves, *scorer.parameters())
    ours, theirs = (torch.autograd.grad((x.flatten() * weights).sum(), wanted) for x in (scores, expected))
    for one, other in zip(ours, theirs, strict=True):
        scale = 1.0 if dtype == torch.float64 else max(1.0, float(other.nan_to_num().abs().max()))
        torch.testing.assert_close(one, other.nan_to_num(), rtol=close["rtol"], atol=close["atol"] * scale)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_empty_items_score_what_is_asked(selection: str) -> None:
    more, pairs, _ = SELECTIONS[selection]
    scorer, leaves = Scorer(torch.float32), sides(torch.float32)
    lengths = [own.clone() for own in LENGTHS]
    lengths[0][4] = lengths[1][0] = 0
    scores = scan_attend_scores(*leaves, scorer, *lengths, **more, **THREE, empty_score=-torch.inf).flatten()
    empty = (pairs[:, 0] == 4) | (pairs[:, 1] == 0)
    assert (scores[empty] == -torch.inf).all()
    expected = one_by_one(scorer, leaves, pairs[~empty], direction="t2i", normalize=False)
    torch.testing.assert_close(scores[~empty], expected)
    gradients = torch.autograd.grad(scores[~empty].sum(), (*leaves, *scorer.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("counts", [(0, 3), (3, 0), (0, 0)])
def test_no_pairs(counts: tuple[int, int]) -> None:
    scorer = Scorer(torch.float32)
    leaves = [torch.zeros(n, 2, D, requires_grad=True) for n in counts]
    scores = scan_attend_scores(*leaves, scorer)
    assert scores.shape == counts
    scores.sum().backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


def test_a_block_is_as_wide_as_its_longest_query() -> None:
    widths: list[int] = []

    def score(made: ScanAttended, queries: Tensor, *_: Tensor) -> Tensor:
        widths.append(queries.size(1))
        return made.scores

    leaves = sides(torch.float32)
    scan_attend_scores(*leaves, score, *LENGTHS, workspace_bytes=1)
    assert widths == LENGTHS[1].tolist() * N_IMAGES


def test_gradients_of_half_precision_are_summed_in_float32() -> None:
    """Of 300 pairs, each in a block of its own: from 256 on 1 is too little to be added in bfloat16."""
    regions, words = (torch.ones(n, 1, 1, dtype=torch.bfloat16, requires_grad=True) for n in (1, 300))

    def score(made: ScanAttended, queries: Tensor, *_: Tensor) -> Tensor:
        return made.attended.sum((1, 2)) * queries.sum((1, 2))

    scan_attend_scores(regions, words, score, workspace_bytes=1).sum().backward()
    assert regions.grad is not None and regions.grad.item() == 300


MISTAKES: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, TypeError, "scorer must be callable, not NoneType"),
    (lambda made, *_: made.attended, {}, ValueError, "scorer must return a score for each of 4 pairs, got shape"),
    (max, {"workspace_bytes": 0}, ValueError, "workspace_bytes must be at least 1, not 0"),
    (max, {"lambda_softmax": "9"}, TypeError, "lambda_softmax must be a number"),
]
SIDES = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
test_mistakes_are_named = told(
    lambda scorer, options: scan_attend_scores(*SIDES, scorer, **options), {case[-1]: case for case in MISTAKES}
)
