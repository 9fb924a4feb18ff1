"""Skip-Thoughts' word vectors: a table, utable.npy, and dictionary.txt, the words of its rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.data.word_vectors.found import Found, chosen_rows
from crossret.files.arrays import map_array
from crossret.files.regular import open_regular

DICTIONARY = "dictionary.txt"  # beside the table
UNKNOWN_WORD = b"UNK"
_UNKNOWN = "<unk>"  # its name in vocabularies
_LONGEST_WORD = 2**12  # bytes


def read_skip_thoughts(path: Path, words: Sequence[str]) -> Found:
    """The rows of a table, with its dictionary beside it; as ``read_word_vectors``."""
    dictionary = path.with_name(DICTIONARY)
    if not dictionary.exists():
        raise FileNotFoundError(f"{dictionary}: no such file; it must hold the words of {path.name}, one a line")
    wanted = {UNKNOWN_WORD if word == _UNKNOWN else word.encode(): number for number, word in enumerate(words)}
    table, rows = open_table(path, dictionary, wanted)
    return chosen_rows(path, table, {wanted[word]: row for word, row in rows.items()}, words)


def open_table(
    path: Path, dictionary: Path, wanted: Collection[bytes]
) -> tuple[NDArray[np.float32] | NDArray[np.float64], dict[bytes, int]]:
    """The table (words, dimensions), memory-mapped, and the rows of those of the wanted words that are there.

    The last of equal words counts, as in the published code.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: the table is no array of numbers, a line is longer than any word, or there are not as many lines as
            rows; names the files and the line.
    """
    table = map_array(path, ndim=2, dtypes=("<f4", "<f8"))
    rows: dict[bytes, int] = {}
    lines = 0
    with open_regular(dictionary) as file:
        while line := file.readline(_LONGEST_WORD):
            if len(line) == _LONGEST_WORD:
                raise ValueError(f"{dictionary}, line {lines + 1}: longer than any word")
            word = line.strip()
            if word in wanted:
                rows[word] = lines
            lines += 1
    if lines != len(table):
        raise ValueError(f"{path}: {len(table)} vectors for {lines} words of {dictionary}")
    return table, rows
