"""Attention kept for pictures: it agrees with the scores and ignores padding; the pointing game counts right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crossret.explain.pointing import pointing_answers
from crossret.models.attention import paired, word_region_attention
from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer


def some_items(n: int, longest: int, dim: int, seed: int) -> Encoded:
    """n items of 1 to ``longest`` rows; NaN at the padding, where nothing may look."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=generator)
    sequences = torch.randn(n, longest, dim, generator=generator, dtype=torch.float64)
    sequences[torch.arange(longest) >= lengths[:, None]] = torch.nan
    return Encoded(sequences, lengths)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_a_map_is_what_the_scorer_saw(direction: str) -> None:
    images, captions = some_items(3, 4, 5, 0), some_items(3, 6, 5, 1)
    scorer, pairs = CrossAttentionScorer(direction), paired(images, captions)
    sides = images.sequences, captions.sequences, captions.lengths, images.lengths
    scores, weights, relevances = scorer.attention(*sides, pairs=pairs)
    torch.testing.assert_close(scores, scorer(*sides).diagonal(), rtol=1e-9, atol=1e-9)
    attention = word_region_attention(scorer, images, captions)
    assert (attention.name, attention.queries, attention.word_weights) == (direction, None, None)
    torch.testing.assert_close(attention.weights, weights if direction == "t2i" else weights.mT)
    if direction == "t2i":
        torch.testing.assert_close(attention.relevances, relevances)
    with pytest.raises(ValueError, match="3 images and 2 captions"):
        word_region_attention(scorer, images, captions[:2])


def test_where_regions_attend_a_word_has_the_relevance_of_its_region() -> None:
    # The third word is padding; the first is like the second region, and the second word like half of the first region.
    regions, words = torch.eye(4)[None, [0, 2]], torch.eye(4)[None, [2, 1, 0]]
    regions[0, 0, 1] = 1
    images, captions = Encoded(regions, torch.tensor([2])), Encoded(words, torch.tensor([2]))
    scorer = CrossAttentionScorer("i2t")
    _, _, of_regions = scorer.attention(
        regions, words, captions.lengths, images.lengths, pairs=paired(images, captions)
    )
    attention = word_region_attention(scorer, images, captions)
    assert 0 < of_regions[0, 0] < of_regions[0, 1]
    assert attention.strongest()[0, :2].tolist() == [1, 0]
    assert attention.relevances[0].tolist() == [of_regions[0, 1], of_regions[0, 0], 0]


HERE, AROUND, THERE = [10, 10, 20, 20], [5, 6, 26, 23], [50, 50, 60, 60]
CORNER = [18, 18, 30, 30]  # overlaps "here" and "around", its centre lies in "around" alone


def test_answers_are_hits_and_chances() -> None:
    regions = [[HERE, THERE, AROUND], [HERE, THERE, THERE], [HERE, HERE, HERE], [CORNER] * 3]
    objects = np.array([HERE, HERE, THERE, HERE], np.float32)[:, None]
    answers = pointing_answers(np.array([[2], [1], [0], [1]]), np.array(regions, np.float32), objects)
    expected = [[1, 2 / 3, 1, 2 / 3], [0, 1 / 3, 0, 1 / 3], [0, 0, 0, 0], [1, 1, 0, 0]]
    np.testing.assert_allclose(answers[:, 0], expected)


def test_any_object_is_right_and_every_query_is_asked() -> None:
    regions = np.array([[HERE, THERE, [80, 80, 90, 90]]] * 2, np.float32)
    objects = np.array([[HERE, THERE], [THERE, [np.nan] * 4]], np.float32)
    answers = pointing_answers(np.array([[0, 1, 2]] * 2), regions, objects)
    np.testing.assert_array_equal(answers[:, :, 0], [[1, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(answers[:, :, 2], answers[:, :, 0])
    for chance in (1, 3):
        np.testing.assert_allclose(answers[:, :, chance], [[2 / 3] * 3, [1 / 3] * 3])


@pytest.mark.parametrize(
    ("shift", "overlaps", "inside"),
    [(distance, distance < 20, distance <= 10) for distance in (0, 10, 11, 19, 20)],
)
@pytest.mark.parametrize("way", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_pointing_beside_an_object_is_a_miss(way: tuple[int, int], shift: int, overlaps: bool, inside: bool) -> None:
    thing = np.array([20, 20, 40, 40], np.float32)
    beside = thing + shift * np.array([*way, *way], np.float32)
    answers = pointing_answers(np.array([[0]]), beside[None, None], thing[None, None])
    assert answers[0, 0].tolist() == [overlaps, overlaps, inside, inside]
