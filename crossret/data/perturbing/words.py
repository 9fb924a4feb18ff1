"""Caption perturbations of OAN §3: words in random order, or all words of one part of speech left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# The rows of Table 1 as Universal POS tags. The paper's classes are of the Penn Treebank's tags (§3.3): cardinal
# numbers (CD); prepositions (IN), which are also what opens a clause ("while"); verbs, nouns; adjectives and adverbs
# together, as it counts them, though the table names adjectives alone. Not quite the same are ADP, which also has "to"
# before a noun (TO) and the particles of verbs (RP), and AUX, which is a verb here, "is" as well as "can" (MD).
PARTS_OF_SPEECH = {
    "noun": frozenset({"NOUN", "PROPN"}),
    "verb": frozenset({"VERB", "AUX"}),
    "adjective": frozenset({"ADJ", "ADV"}),
    "preposition": frozenset({"ADP", "SCONJ"}),
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
