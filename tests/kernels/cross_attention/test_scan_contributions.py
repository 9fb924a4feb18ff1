"""`scan_contributions`: shares of words and regions by their formula, which add up to the score."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels import scan_attention, scan_contributions, scan_scores
from tests.kernels.strategies import POOLINGS, Features, examples, features, scan_options


def shares_by_hand(relevances: list[float], score: float, pooling: str, lambda_lse: float) -> list[float]:
    """Of one pair, R_i − log p_i / λ₂ weighted by p_i for "lse"."""
    if pooling == "max":
        first = relevances.index(max(relevances))
        return [score if place == first else 0.0 for place in range(len(relevances))]
    if pooling == "lse":
        largest = max(relevances)
        exponents = [lambda_lse * (relevance - largest) for relevance in relevances]
        log_sum = math.log(sum(map(math.exp, exponents)))
        return [
            math.exp(exponent - log_sum) * (relevance - (exponent - log_sum) / lambda_lse)
            for relevance, exponent in zip(relevances, exponents, strict=True)
        ]
    if pooling == "softmax":
        weights = [math.exp(lambda_lse * (relevance - max(relevances))) for relevance in relevances]
        return [relevance * weight / sum(weights) for relevance, weight in zip(relevances, weights, strict=True)]
    return [relevance / (len(relevances) if pooling == "avg" else 1) for relevance in relevances]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@examples(30)
@given(
    batch=features(), options=scan_options(), layout=st.sampled_from(("padded", "packed", "list")),
    of_candidates=st.booleans(),
)  # fmt: skip
def test_shares_are_the_formula_s_and_add_up(
    dtype: torch.dtype, batch: Features, options: dict[str, Any], layout: str, of_candidates: bool
) -> None:
    batch = batch.to(dtype)
    n_images, n_captions = len(batch.regions), len(batch.words)
    call: dict[str, Any] = dict(options)
    if of_candidates:
        call |= {"query": "caption", "candidates": torch.arange(n_images).flip(0).expand(n_captions, n_images)}
    else:
        call["pairs"] = torch.cartesian_prod(torch.arange(n_images), torch.arange(n_captions)).view(-1, 2)
    scores, weights, relevances, shares = scan_contributions(*batch.arguments(layout), **call)
    for ours, expected in zip(
        (scores, weights, relevances), scan_attention(*batch.arguments(layout), **call), strict=True
    ):
        assert torch.equal(ours, expected)
    if dtype == torch.float32:
        assert torch.equal(shares.sum(-1).float(), scores)
    else:
        torch.testing.assert_close(shares.sum(-1), scores, rtol=1e-13, atol=1e-13)
    lengths = batch.word_lengths if options["direction"] == "t2i" else batch.region_lengths
    for place, score in enumerate(scores.flatten().tolist()):
        if of_candidates:
            item = place // n_images if options["direction"] == "t2i" else n_images - 1 - place % n_images
        else:
            item = place % n_captions if options["direction"] == "t2i" else place // n_captions
        length = int(lengths[item])
        own = relevances.flatten(0, -2)[place].tolist()[:length]
        by_hand = shares_by_hand(own, score, options["pooling"], options["lambda_lse"])
        made = shares.flatten(0, -2)[place]
        assert made[:length].tolist() == pytest.approx(by_hand, rel=1e-5, abs=1e-5 if dtype == torch.float32 else 1e-9)
        assert not made[length:].any()


def test_a_pair_of_an_empty_item_has_no_shares() -> None:
    sides = [torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    mask = torch.tensor([[True, False, True], [False, False, False]])
    for pooling in POOLINGS:
        options: dict[str, Any] = {
            "word_mask": mask, "empty_score": -torch.inf, "pairs": torch.tensor([[1, 0], [0, 1]]), "pooling": pooling
        }  # fmt: skip
        made = scan_contributions(*sides, **options)
        assert torch.equal(made.scores, scan_scores(*sides, **options))
        assert torch.equal(made.contributions[0].sum().float(), made.scores[0])
        assert torch.equal(made.contributions[0] == 0, torch.tensor([False, True, False])) or pooling == "max"
        assert not made.contributions[1].any()
