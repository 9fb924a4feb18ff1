"""`scan_attend_scores`: a scorer of attended vectors, block by block, against the same of `scan_attend` at once."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossret_kernels import ScanAttended, scan_attend, scan_attend_scores
from tests.kernels.strategies import Features

D, R, W = 8, 6, 7
LENGTHS = torch.tensor([6, 1, 3, 4, 2]), torch.tensor([2, 7, 1, 5])
EVERY = torch.cartesian_prod(torch.arange(5), torch.arange(4))
PAIRS = torch.tensor([[4, 1], [0, 0], [0, 3], [4, 1], [2, 2]])
SMALL: dict[str, Any] = {"workspace_bytes": 3000, "bytes_per_pair": 1000}  # three pairs at a time


class Differences(nn.Module):
    """A score of |a − q|², of vectors of items and of weights, that looks at what it gets."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer, self.of_items = nn.Linear(D, 3, dtype=dtype), nn.Embedding(5, 3, dtype=dtype)
        self.blocks: list[int] = []

    def forward(self, made: ScanAttended, queries: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
        self.blocks.append(len(pairs))
        assert made.attended.shape == queries.shape and mask.shape == queries.shape[:2]
        assert not queries[~mask].any() and not made.attended[~mask].any()
        vectors = torch.tanh(self.layer((made.attended - queries).square())) * mask[..., None]
        own = (vectors.sum(1) * self.of_items(pairs[:, 0])).sum(1)
        return own + made.scores + made.weights.square().sum((1, 2)) + made.relevances.sin().sum(1)


def features(dtype: torch.dtype = torch.float64) -> Features:
    generator = torch.Generator().manual_seed(1)
    regions, words = (torch.randn(*n, D, generator=generator).to(dtype) for n in ((5, R), (4, W)))
    return Features(regions.requires_grad_(), words.requires_grad_(), *LENGTHS, None)


def results(scores: Tensor, scorer: nn.Module, batch: Features) -> list[Tensor]:
    weights = torch.randn(scores.numel(), generator=torch.Generator().manual_seed(3)).to(scores)
    wanted = (batch.regions, batch.words, *scorer.parameters())
    return [scores.detach().flatten(), *torch.autograd.grad(scores.flatten(), wanted, weights)]


def at_once(scorer: Differences, batch: Features, pairs: Tensor, **options: Any) -> Tensor:
    made = scan_attend(*batch.arguments(), pairs=pairs, **options)
    attending = int(options["direction"] == "t2i")
    side, lengths = ((batch.regions, LENGTHS[0]), (batch.words, LENGTHS[1]))[attending]
    if options.get("normalize"):
        side = nn.functional.normalize(side, dim=-1)
    mask = torch.arange(side.shape[1]) < lengths[:, None]
    queries = side.masked_fill(~mask[..., None], 0)[pairs[:, attending]]
    return scorer(made, queries, mask[pairs[:, attending]], pairs)


@pytest.mark.parametrize("listed", [False, True], ids=["all", "pairs"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_blocks_are_as_all_pairs_at_once(dtype: torch.dtype, direction: str, normalize: bool, listed: bool) -> None:
    """float32 by kernels: scores, gradients of features, and of the scorer's own parameters."""
    batch, scorer = features(dtype), Differences(dtype)
    options: dict[str, Any] = {"direction": direction, "normalize": normalize}
    pairs = PAIRS if listed else None
    scores = scan_attend_scores(batch.regions, batch.words, scorer, *LENGTHS, pairs=pairs, **options, **SMALL)
    assert scores.shape == ((5,) if listed else (5, 4))
    assert max(scorer.blocks) <= 3
    n_blocks = len(scorer.blocks)
    found = results(scores, scorer, batch)
    assert len(scorer.blocks) == 2 * n_blocks  # made again for their gradients, and not kept
    expected = results(at_once(scorer, batch, PAIRS if listed else EVERY, **options), scorer, batch)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10 if dtype == torch.float64 else 2e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "list"])
def test_layouts(layout: str) -> None:
    batch, scorer = features(), Differences()
    (v, e), (v_lengths, e_lengths) = batch.arguments(layout)[:2], (None, None)
    expected = scan_attend_scores(batch.regions, batch.words, scorer, *LENGTHS, **SMALL)
    torch.testing.assert_close(scan_attend_scores(v, e, scorer, v_lengths, e_lengths, **SMALL), expected)
    mask = torch.arange(W) < LENGTHS[1][:, None]
    masked = scan_attend_scores(batch.regions, batch.words, scorer, LENGTHS[0], word_mask=mask)
    torch.testing.assert_close(masked, expected)


def test_candidates_and_empty_items() -> None:
    batch, scorer = features(), Differences()
    candidates = torch.tensor([[0, 4], [1, 1], [2, 3], [3, 0]])
    every = scan_attend_scores(batch.regions, batch.words, scorer, *LENGTHS)
    found = scan_attend_scores(batch.regions, batch.words, scorer, *LENGTHS, candidates=candidates, **SMALL)
    torch.testing.assert_close(found, every.T.gather(1, candidates))
    lengths = LENGTHS[0].clone()
    lengths[1] = 0
    with_empty = scan_attend_scores(batch.regions, batch.words, scorer, lengths, LENGTHS[1], empty_score=-2.0)
    assert (with_empty[1] == -2).all()
    torch.testing.assert_close(with_empty[[0, 2, 3, 4]], every[[0, 2, 3, 4]])
    none = scan_attend_scores(batch.regions[:0], batch.words, scorer, LENGTHS[0][:0], LENGTHS[1])
    assert none.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scorer": 3}, TypeError, "scorer must be callable, not int"),
        ({"scorer": lambda made, *_: made.attended}, ValueError, "scorer must return"),
        ({"workspace_bytes": 0}, ValueError, "workspace_bytes must be at least 1, not 0"),
        ({"direction": "both"}, ValueError, "direction"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    batch = features()
    options = {"scorer": Differences(), **change}
    with pytest.raises(error, match=re.escape(message)):
        scan_attend_scores(batch.regions, batch.words, options.pop("scorer"), *LENGTHS, **options)
