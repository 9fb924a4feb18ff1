"""Caption perturbations of OAN §3: words in random order, or all words of one part of speech left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Universal POS tags for the rows of Table 1. A proper noun is a noun, and an auxiliary a verb ("is", "are"), as in the
# Penn Treebank's tags, by which the paper counts.
PARTS_OF_SPEECH = {
    "noun": frozenset({"NOUN", "PROPN"}),
    "verb": frozenset({"VERB", "AUX"}),
    "adjective": frozenset({"ADJ"}),
    "preposition": frozenset({"ADP"}),
    "number": frozenset({"NUM"}),
}


def shuffle_words(words: Sequence[str], rng: np.random.Generator) -> list[str]:
    """The words, punctuation marks among them, in an order drawn at random: any of them, the same one too."""
    return [words[place] for place in rng.permutation(len(words))]


def drop_words(words: Sequence[str], tags: Sequence[str], part: str) -> list[str]:
    """The words that are not of one part of speech, in their order.

    Args:
        words: a tokenized caption.
        tags: the Universal POS tag of each word.
        part: a key of ``PARTS_OF_SPEECH``.

    Raises:
        ValueError: there are not as many tags as words, or there is no such part of speech.
    """
    if part not in PARTS_OF_SPEECH:
        raise ValueError(f"part must be one of {', '.join(PARTS_OF_SPEECH)}, not {part!r}")
    if len(tags) != len(words):
        raise ValueError(f"tags: {len(tags)} for {len(words)} words")
    return [word for word, tag in zip(words, tags, strict=True) if tag not in PARTS_OF_SPEECH[part]]


def join_words(words: Sequence[str]) -> str:
    """A caption that ``tokenize`` parts into these words again.

    A closing quotation mark follows the word before it without a space, after which it would open. One that begins the
    caption or stands behind an opening bracket opens nevertheless.
    """
    return " ".join(words).replace(" ''", "''")
