"""Attention kept for pictures: it agrees with the scores and ignores padding; the pointing game counts right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.encoded import Encoded
from crossret.explain import pointing_game, word_region_attention
from crossret.scorers import CrossAttentionScorer
from tests.kernels.strategies import NORM_MODES


def some_items(n: int, longest: int, dim: int, seed: int) -> Encoded:
    """n items of 1 to ``longest`` rows; NaN at the padding, where nothing may look."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=generator)
    sequences = torch.randn(n, longest, dim, generator=generator, dtype=torch.float64)
    sequences[torch.arange(longest) >= lengths[:, None]] = torch.nan
    return Encoded(sequences, lengths)


@settings(max_examples=60)
@given(
    direction=st.sampled_from(["t2i", "i2t"]),
    raw_feature_norm=st.sampled_from(NORM_MODES),
    clip_slope=st.sampled_from([0.0, 0.1]),
    pooling=st.sampled_from(["lse", "avg", "sum", "max"]),
    normalize=st.booleans(),
    pairs=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4)),
    seed=st.integers(0, 2**16),
)
def test_pooled_relevance_is_the_score(
    direction: str,
    raw_feature_norm: str,
    clip_slope: float,
    pooling: str,
    normalize: bool,
    pairs: int,
    sizes: tuple[int, int, int],
    seed: int,
) -> None:
    regions, words, dim = sizes
    images, captions = some_items(pairs, regions, dim, seed), some_items(pairs, words, dim, seed + 1)
    scorer = CrossAttentionScorer(
        direction,
        raw_feature_norm=raw_feature_norm,
        clip_slope=clip_slope,
        lambda_softmax=4.0,
        pooling=pooling,
        lambda_lse=5.0,
        normalize=normalize,
    )
    attention = word_region_attention(scorer, images, captions)
    queries = captions if direction == "t2i" else images
    pooled = []
    for relevance, length in zip(attention.relevance, queries.lengths, strict=True):
        r = relevance[:length]
        pooled.append({"lse": torch.logsumexp(5 * r, 0) / 5, "avg": r.mean(), "sum": r.sum(), "max": r.max()}[pooling])
    expected = scorer(images.sequences, captions.sequences, captions.lengths, images.lengths).diagonal()
    torch.testing.assert_close(torch.stack(pooled), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=20)
@given(direction=st.sampled_from(["t2i", "i2t"]), seed=st.integers(0, 2**16))
def test_weights_sum_to_one_over_what_is_attended(direction: str, seed: int) -> None:
    images, captions = some_items(3, 4, 5, seed), some_items(3, 6, 5, seed + 1)
    attention = word_region_attention(CrossAttentionScorer(direction), images, captions)
    assert attention.weights.shape == attention.strength.shape == (3, 6, 4)
    over_contexts = attention.weights.sum(dim=2 if direction == "t2i" else 1)
    lengths = captions.lengths if direction == "t2i" else images.lengths
    real = torch.arange(over_contexts.shape[1]) < lengths[:, None]
    torch.testing.assert_close(over_contexts, real.double())
    relevance = attention.relevance[:, :, None] if direction == "t2i" else attention.relevance[:, None, :]
    torch.testing.assert_close(attention.strength, attention.weights * relevance.clamp(min=0))


def test_a_word_looks_at_the_region_that_is_like_it() -> None:
    regions = torch.eye(4)[None]
    words = torch.eye(4)[[2, 0, 3]][None]
    attention = word_region_attention(
        CrossAttentionScorer("t2i"), Encoded(regions, torch.tensor([4])), Encoded(words, torch.tensor([3]))
    )
    assert attention.strongest().tolist() == [[2, 0, 3]]


def test_images_without_partners_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 images and 3 captions"):
        word_region_attention(CrossAttentionScorer(), some_items(2, 3, 4, 0), some_items(3, 3, 4, 0))


def test_pointing_game_counts_hits_and_chance() -> None:
    here, around, there = [10, 10, 20, 20], [5, 6, 26, 23], [50, 50, 60, 60]
    corner = [18, 18, 30, 30]  # overlaps "here" and "around", its centre lies in "around" alone
    regions = np.array([[here, there, around], [here, there, there], [here, here, here], [corner] * 3], np.float32)
    objects = np.array([here, here, there, here], np.float32)
    game = pointing_game(np.array([2, 1, 0, 1]), regions, objects)
    assert game.nouns == 4
    assert game.accuracy == pytest.approx(2 / 4)
    assert game.chance == pytest.approx((2 / 3 + 1 / 3 + 0 + 1) / 4)
    assert game.centre_accuracy == pytest.approx(1 / 4)
    assert game.centre_chance == pytest.approx((2 / 3 + 1 / 3 + 0 + 0) / 4)


@pytest.mark.parametrize(
    ("shift", "overlaps", "inside"),
    [(distance, distance < 20, distance <= 10) for distance in (0, 9, 10, 11, 19, 20, 21)],
)
@pytest.mark.parametrize("way", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_pointing_beside_an_object_is_a_miss(way: tuple[int, int], shift: int, overlaps: bool, inside: bool) -> None:
    thing = np.array([20, 20, 40, 40], np.float32)
    beside = thing + shift * np.array([*way, *way], np.float32)
    game = pointing_game(np.array([0]), beside[None, None], thing[None])
    assert (game.accuracy, game.centre_accuracy) == (overlaps, inside)


@pytest.mark.parametrize(
    ("nouns", "regions", "objects", "message"),
    [(0, (0, 3, 4), (0, 4), "no nouns"), (2, (1, 3, 4), (2, 4), "regions"), (2, (2, 3, 4), (2, 3), "objects")],
)
def test_pointing_game_rejects_what_does_not_fit(
    nouns: int, regions: tuple[int, ...], objects: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pointing_game(np.zeros(nouns, np.int64), np.zeros(regions, np.float32), np.zeros(objects, np.float32))
