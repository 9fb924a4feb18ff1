"""Word vectors as text: a word and its numbers a line, behind a line of two numbers in word2vec's."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret.data.word_vectors.found import Found, gathered

_LONGEST_LINE = 2**20  # bytes; 1,000 dimensions take some ten thousand


def read_promise(path: Path, line: bytes) -> tuple[int, int] | None:
    """The numbers of words and of dimensions that word2vec's files begin with; None where a line is something else.

    Raises:
        ValueError: there are no dimensions.
    """
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
        return None
    words, dim = map(int, fields)
    if not dim:
        raise ValueError(f"{path}, line 1: promises vectors of no dimensions")
    return words, dim


def read_text(path: Path, file: BinaryIO, numbers: Mapping[bytes, int]) -> Found:
    """GloVe's text, or word2vec's; as ``read_word_vectors``, of words by their numbers."""
    rows: dict[int, NDArray[np.float32]] = {}
    promised, dim, number, empty = None, None, 0, 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"{path}, line {number}: longer than any line of word vectors")
        line = line.rstrip()
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if not line:
            empty = empty or number
            continue
        if empty:
            raise ValueError(f"{path}, line {empty}: empty, but not the end")
        spaces = line.count(b" ")
        if dim is None:
            if number == 1 and (header := read_promise(path, line)) is not None:
                promised, dim = header
                continue
            dim = spaces
            if not dim:
                raise ValueError(f"{path}, line {number}: not a word and its numbers")
        if spaces < dim:
            raise ValueError(f"{path}, line {number}: {spaces} numbers, expected {dim}")
        # Some of GloVe's words have spaces in them.
        fields = line.split(b" ") if spaces == dim else line.rsplit(b" ", dim)
        place = numbers.get(fields[0])
        if place is not None and place not in rows:
            rows[place] = _parse(fields[1:], f"{path}, line {number}")
    if dim is None:
        raise ValueError(f"{path}: no word vectors in it")
    number = empty - 1 if empty else number
    if promised is not None and promised != number - 1:
        raise ValueError(f"{path}: {number - 1} words, but its first line promises {promised}")
    return gathered(rows, dim)


def _parse(fields: list[bytes], place: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(field) for field in fields]).astype(np.float32)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{place}: not all numbers are finite in float32")
    return vector
