"""word2vec's binary form: a line of two numbers, then each word, a space and its numbers as little-endian float32."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret.data.word_vectors.found import Found, gathered
from crossret.data.word_vectors.text import read_promise

_LONGEST_HEADER = 64  # bytes
_LONGEST_WORD = 2**12
_MOST_DIMENSIONS = 2**16
_CHUNK = 2**22
_NUMBERS = re.compile(rb"[-+.0-9eE]+")
_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def is_binary(path: Path, file: BinaryIO) -> bool:
    """Whether a file that stands at its beginning is of this form and no text; where it then stands is not said.

    It is text where its second line ends in as many numbers as the first one promises, or where nothing in the place
    of the first vector could not be text: then a reader of text can say what is wrong with it.
    """
    line = file.readline(_LONGEST_HEADER)
    promise = read_promise(path, line) if line.endswith(b"\n") else None
    if promise is None or promise[1] > _MOST_DIMENSIONS:
        return False
    dim = promise[1]
    first = file.read(_LONGEST_WORD + 32 * dim).lstrip(b"\n")
    fields = first.partition(b"\n")[0].rstrip().rsplit(b" ", dim)
    if len(fields) == dim + 1 and all(_NUMBERS.fullmatch(field) for field in fields[1:]):
        return False
    vector = first.partition(b" ")[2][: 4 * dim]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(vector)  # which may end inside a character
    except UnicodeDecodeError:
        return True
    return _NO_TEXT.search(vector) is not None


def read_binary(path: Path, file: BinaryIO, numbers: Mapping[bytes, int]) -> Found:
    """A file of this form that stands at its beginning; as ``read_word_vectors``, of words by their numbers."""
    header = file.readline(_LONGEST_HEADER)
    promise = read_promise(path, header)
    assert promise is not None  # which is_binary has looked at
    promised, dim = promise
    vectors: dict[int, NDArray[np.float32]] = {}
    longest = _LONGEST_WORD + 4 * dim + 2
    buffer, start, offset = b"", 0, len(header)  # buffer[start:] begins at byte ``offset`` of the file
    for number in range(1, promised + 1):
        place = f"{path}, word {number} of {promised} (byte {offset})"
        if len(buffer) - start < longest:
            buffer, start = buffer[start:] + file.read(max(_CHUNK, longest)), 0
        begin = start + (buffer[start : start + 1] == b"\n")  # some programs end a vector with it
        space = buffer.find(b" ", begin, begin + _LONGEST_WORD)
        if space < 0 and len(buffer) - begin >= _LONGEST_WORD:
            raise ValueError(f"{place}: no space behind a word in {_LONGEST_WORD:,} bytes")
        end = space + 1 + 4 * dim
        if space < 0 or end > len(buffer):
            raise ValueError(f"{place}: the file ends in it")
        word = numbers.get(buffer[begin:space])
        if word is not None and word not in vectors:
            vectors[word] = np.frombuffer(buffer, "<f4", dim, space + 1).astype(np.float32)
            if not np.isfinite(vectors[word]).all():
                raise ValueError(f"{place}: not all numbers are finite")
        offset += end - start
        start = end
    if buffer[start:] + file.read(2) not in (b"", b"\n"):
        raise ValueError(f"{path}: goes on at byte {offset}, behind the {promised} words that it promises")
    return gathered(vectors, dim)
