"""Perturbed words: the same ones in another order, or all but those of one part of speech."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.data import tokenize
from crossret.data.perturbing.words import drop_words, join_words, shuffle_words
from tests.kernels.strategies import examples

WORDS = tokenize("Two dogs are quickly chasing a red ball in Rome while I watch.")
TAGS = ["NUM", "NOUN", "AUX", "ADV", "VERB", "DET", "ADJ", "NOUN", "ADP", "PROPN", "SCONJ", "PRON", "VERB", "PUNCT"]


@pytest.mark.parametrize(
    ("part", "left"),
    [
        ("noun", "two are quickly chasing a red in while i watch ."),
        ("verb", "two dogs quickly a red ball in rome while i ."),
        ("adjective", "two dogs are chasing a ball in rome while i watch ."),
        ("preposition", "two dogs are quickly chasing a red ball rome i watch ."),
        ("number", "dogs are quickly chasing a red ball in rome while i watch ."),
    ],
)
def test_a_part_of_speech_is_dropped(part: str, left: str) -> None:
    assert " ".join(drop_words(WORDS, TAGS, part)) == left


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="part must be one of noun, verb, adjective, preposition, number, not 'nouns'"):
        drop_words(WORDS, TAGS, "nouns")
    with pytest.raises(ValueError, match="tags: 13 for 14 words"):
        drop_words(WORDS, TAGS[1:], "noun")


# What tokenize parts and joins in every way that it knows, but for what says of itself that it cannot be joined.
WORDS_OF_ALL_KINDS = [
    "dog's", "isn't", "cannot", "10,000", "U.S.", "mid-air", "o'clock", '"stop"', "--", "...", ",", "9:30", "gimme",
]  # fmt: skip
CAPTIONS = st.lists(st.sampled_from(WORDS_OF_ALL_KINDS), min_size=1, max_size=6).map(" ".join)


@examples(100)
@given(CAPTIONS, st.integers(0, 99))
def test_joined_words_are_read_as_the_same_words(caption: str, seed: int) -> None:
    words = shuffle_words(tokenize(caption), np.random.default_rng(seed))
    assert sorted(words) == sorted(tokenize(caption))
    assert tokenize(join_words(words)) == words
