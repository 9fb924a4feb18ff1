"""Word vectors from a file of any form, told by its first bytes; no others than those asked for stay in memory."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from crossret.data.word_vectors.found import Found
from crossret.data.word_vectors.keyed_vectors import read_keyed_vectors
from crossret.data.word_vectors.skip_thoughts import read_skip_thoughts
from crossret.data.word_vectors.text import read_text
from crossret.data.word_vectors.word2vec import is_binary, read_binary
from crossret.files.regular import open_regular

_GZIP, _PICKLE, _ARRAY = b"\x1f\x8b", b"\x80", b"\x93NUMPY"


def read_word_vectors(path: str | os.PathLike[str], words: Sequence[str]) -> Found:
    """The vectors of those of ``words`` that a file has.

    The file is one of these, told by its first bytes: GloVe's text, a word and its numbers a line; word2vec's text, the
    same behind a line with the number of words and of dimensions; word2vec's binary form, behind such a line each word,
    a space and its numbers as little-endian float32; any of them gzipped; what gensim 4's ``KeyedVectors.save`` wrote,
    with its large array in ``.vectors.npy`` beside it, which is memory-mapped, or within; or Skip-Thoughts'
    ``utable.npy``, beside which is ``dictionary.txt``, a word a line in the order of its rows. Empty lines at the end
    of a text do not count. Nothing in a file is executed. Words are compared as they are, case included; the first of
    equal ones counts. Of Skip-Thoughts, "<unk>" is its "UNK", and the last of equal words counts, as in its code.

    Args:
        path: the file.
        words: for instance ``Vocabulary.idx2word``.

    Returns:
        vectors: (found, dimensions) float32.
        found: (found,) int64, ascending: the numbers in ``words`` that the rows belong to.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: the file is none of these or is malformed; names it, and the line of a text, the word and the byte
            of a binary file.
    """
    path = Path(path)
    numbers = {word.encode(): number for number, word in enumerate(words)}
    with open_regular(path) as file:
        start = _peek(file)
        if start.startswith(_PICKLE):
            return read_keyed_vectors(path, file, words)
        if start.startswith(_ARRAY):
            return read_skip_thoughts(path, words)
        if not start.startswith(_GZIP):
            return _read_words(path, file, numbers)
        try:
            with gzip.open(file) as unzipped:
                if _peek(cast(BinaryIO, unzipped)).startswith((_PICKLE, _ARRAY)):
                    raise ValueError(f"{path}: a gzipped pickle or array; save it uncompressed")
                return _read_words(path, cast(BinaryIO, unzipped), numbers)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: damaged gzip data ({error})") from error


def _read_words(path: Path, file: BinaryIO, numbers: Mapping[bytes, int]) -> Found:
    binary = is_binary(path, file)
    file.seek(0)
    return (read_binary if binary else read_text)(path, file, numbers)


def _peek(file: BinaryIO) -> bytes:
    start = file.read(len(_ARRAY))
    file.seek(0)
    return start
