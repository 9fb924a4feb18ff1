"""Captions to words to word numbers: the tokenizer and the vocabulary."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crossret.files.atomic import atomic_write
from crossret.files.json import read_json
from crossret.files.unicode import escaped, is_unicode

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")

# Characters that end a word wherever they are; other visible characters are parts of words.
_SEPARATE = r"""\s;@#$%&?!*()\[\]{}<>"`«»“”„‘’"""
# Clitics are at the end: "don't-know" is one word.
_NOT = r"n't(?![\w/-])"
_CLITIC = r"'(?:s|m|d|ll|re|ve)(?![\w/-])"
# A character of a word: a full stop only before a letter or digit, a comma or colon only before a digit ("10,000").
_CHARACTER = rf"(?:(?!--)[^'.,:{_SEPARATE}]|\.(?=\w)|[,:](?=\d))"
_TOKEN = re.compile(
    rf"""
      \.{{2,}} | -- | `+ | '' | "
    | {_NOT} | {_CLITIC} | 't(?=is\b|was\b|\b)
    | \b(?: can(?=not\b) | gim(?=me\b) | gon(?=na\b) | got(?=ta\b) | lem(?=me\b) | wan(?=na\b) )
    | {_CHARACTER} (?: (?!{_NOT}){_CHARACTER} | (?!{_CLITIC})'(?=\w) )*
    | \S
    """,
    re.VERBOSE,
)
_BEFORE_OPENING_QUOTE = re.compile(r"[\s(\[{<]")


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words; punctuation marks are words, as in SCAN.

    Follows the Penn Treebank's conventions, by which SCAN's vocabularies were made, where captions need them: clitics
    are words ("is" + "n't", "dog" + "'s", "can" + "not"); numbers, times, hyphens, slashes and inner apostrophes do not
    part words; "..." and "--" are words; double quotes become `` and ''.

    Not covered, so such words of a published vocabulary are not met: abbreviations (a full stop at a word's end is
    always a word of its own, as in "st" + ".", while inside a word it parts nothing) and opening single quotes (always
    words of their own).

    Raises:
        ValueError: the caption holds half of a surrogate pair, which no UTF-8 file can hold.

    >>> tokenize("A dog's ball isn't in mid-air.")
    ['a', 'dog', "'s", 'ball', 'is', "n't", 'in', 'mid-air', '.']
    """
    if not is_unicode(caption):
        raise ValueError(f"caption '{escaped(caption)}': half of a surrogate pair, which no UTF-8 text has")
    text = caption.lower()
    return [_treebank_quote(match) if match[0] in ('"', "''") else match[0] for match in _TOKEN.finditer(text)]


def word_spans(caption: str) -> list[tuple[int, int]]:
    """Where the words of ``tokenize`` lie in a caption: the first character of each, and that behind the last."""
    return [match.span() for match in _TOKEN.finditer(caption.lower())]


def _treebank_quote(quote: re.Match[str]) -> str:
    """`` for a double quote that opens, '' for one that closes; two single ones at the very start stay as they are."""
    before = quote.string[max(quote.start() - 1, 0) : quote.start()]
    opens = quote[0] == '"' if not before else _BEFORE_OPENING_QUOTE.match(before)
    return "``" if opens else "''"


def word_counts(captions: Iterable[str], max_words: int | None = None) -> Counter[str]:
    """How often each word occurs among the first ``max_words`` of each caption; None counts all of them."""
    return Counter(word for caption in captions for word in tokenize(caption)[:max_words])


class Vocabulary:
    """A numbering of words that starts with <pad> = 0, <start> = 1, <end> = 2 and <unk> = 3.

    Args:
        words: the words from number 4 on, each once, in the order of their numbers.

    Raises:
        ValueError: a word occurs twice, is one of the four special ones or holds half of a surrogate pair.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.idx2word: list[str] = [*SPECIAL_WORDS, *words]
        self.word2idx: dict[str, int] = {word: number for number, word in enumerate(self.idx2word)}
        if len(self.word2idx) != len(self.idx2word):
            repeated = next(word for word, count in Counter(self.idx2word).items() if count > 1)
            raise ValueError(f"words: {repeated!r} occurs more than once")
        for number, word in enumerate(self.idx2word):
            if not is_unicode(word):
                raise ValueError(f"words: half of a surrogate pair in word {number}, '{escaped(word)}'")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4) -> Vocabulary:
        """Number the words that occur at least ``min_count`` times in ``captions``, the most frequent first.

        Words of equal frequency are in alphabetical order, so the numbering depends on the counts alone.

        Raises:
            ValueError: ``min_count`` is less than 1, or a caption is not one for ``tokenize``.
        """
        return cls.of_counts(word_counts(captions), min_count)

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], min_count: int = 4) -> Vocabulary:
        """Vocabulary of words that are counted already (see ``word_counts``); raises as ``build``."""
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        frequent = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(frequent, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self.idx2word)

    def __contains__(self, word: object) -> bool:
        return word in self.word2idx

    def encode(self, caption: str) -> list[int]:
        """The numbers of a caption's words between <start> and <end>; a word not in the vocabulary is <unk>."""
        return [START, *(self.word2idx.get(word, UNKNOWN) for word in tokenize(caption)), END]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """The words of these numbers, special ones included.

        Raises:
            ValueError: a number is not in the vocabulary.
        """
        for number in numbers:
            if not 0 <= number < len(self):
                raise ValueError(f"numbers: {number} is not in the vocabulary of {len(self)} words")
        return [self.idx2word[number] for number in numbers]

    def to_json(self) -> str:
        """JSON {word2idx, idx2word (string keys), idx}, the published code's format."""
        idx2word = {str(number): word for number, word in enumerate(self.idx2word)}
        contents = {"word2idx": self.word2idx, "idx2word": idx2word, "idx": len(self)}
        return json.dumps(contents, ensure_ascii=False, indent=0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_json``, atomically."""
        with atomic_write(path) as file:
            file.write(self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read what ``save`` or the published code wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not a vocabulary; the message names the file and what is wrong with it.
        """
        return cls.of_contents(read_json(path), path)

    @classmethod
    def of_contents(cls, contents: object, path: str | os.PathLike[str]) -> Vocabulary:
        """Vocabulary of a file's contents, {word2idx, idx2word (string keys), idx}.

        Raises:
            ValueError: it is none; the message begins with the path and says what is wrong.
        """
        if not isinstance(contents, dict) or not isinstance(contents.get("word2idx"), dict):
            raise ValueError(f"{path}: not a vocabulary: no 'word2idx' object")
        word2idx = contents["word2idx"]
        # bool is an int in Python: True would pass for the number 1.
        for word, number in word2idx.items():
            if type(number) is not int:
                raise ValueError(f"{path}: word2idx[{word!r}] must be an integer, got {number!r}")
            if not isinstance(word, str):
                raise ValueError(f"{path}: word2idx has {word!r}, which is no word")
        words = sorted(word2idx, key=lambda word: word2idx[word])
        if [word2idx[word] for word in words] != list(range(len(words))):
            raise ValueError(f"{path}: the numbers of word2idx must be 0 to {len(words) - 1}, each once")
        if tuple(words[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
            raise ValueError(f"{path}: words 0 to 3 must be {', '.join(SPECIAL_WORDS)}, got {words[:4]}")
        if contents.get("idx2word") != {str(number): word for number, word in enumerate(words)}:
            raise ValueError(f"{path}: 'idx2word' is not the inverse of 'word2idx'")
        if contents.get("idx") != len(words):
            raise ValueError(f"{path}: 'idx' must be the number of words, {len(words)}, got {contents.get('idx')!r}")
        return cls(words[len(SPECIAL_WORDS) :])
