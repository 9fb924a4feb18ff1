"""Word vectors that others trained, as a start for an embedding: GloVe and word2vec text, gensim's KeyedVectors."""

from __future__ import annotations

import gzip
import mmap
import os
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crossret.data.vocabulary import Vocabulary
from crossret.files.arrays import map_array
from crossret.files.regular import open_regular

_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_LONGEST_LINE = 2**20  # bytes; 1,000 dimensions take some ten thousand
_DTYPES = ("<f2", "<f4", "<f8")


def read_word_vectors(
    path: str | os.PathLike[str], words: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The vectors of those of ``words`` that a file has; no others are kept in memory.

    The file is one of these, told by its first bytes: GloVe's text, a word and its numbers a line; word2vec's text, the
    same behind a line with the number of words and of dimensions; either gzipped; or what gensim 4's
    ``KeyedVectors.save`` wrote, with its large array in ``.vectors.npy`` beside it, which is memory-mapped, or within.
    Empty lines at the end of a text do not count. Nothing in a file is executed. Words are compared as they are, case
    included; the first of equal ones counts.

    Args:
        path: the file.
        words: for instance ``Vocabulary.idx2word``.

    Returns:
        vectors: (found, dimensions) float32.
        found: (found,) int64, ascending: the numbers in ``words`` that the rows belong to.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: the file is none of these or is malformed; names it, and the line of a text.
    """
    path = Path(path)
    numbers = {word.encode(): number for number, word in enumerate(words)}
    with open_regular(path) as file:
        start = file.read(2)
        file.seek(0)
        if start[:1] == _PICKLE:
            return _read_keyed_vectors(path, file, words)
        if start != _GZIP:
            return _read_text(path, file, numbers)
        try:
            with gzip.open(file) as unzipped:
                return _read_text(path, cast(BinaryIO, unzipped), numbers)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: damaged gzip data ({error})") from error


def start_from_word_vectors(embedding: nn.Embedding, vocabulary: Vocabulary, path: str | os.PathLike[str]) -> int:
    """Copy the vectors that a file has of the vocabulary's words into an embedding; the others stay as they are.

    Args:
        embedding: one row a word of the vocabulary.
        path: as ``read_word_vectors``.

    Returns:
        How many words were found.

    Raises:
        OSError: as ``read_word_vectors``.
        ValueError: as ``read_word_vectors``, or the sizes do not agree; names both.
    """
    if embedding.num_embeddings != len(vocabulary):
        raise ValueError(f"embedding has {embedding.num_embeddings} rows, but vocabulary {len(vocabulary)} words")
    vectors, found = read_word_vectors(path, vocabulary.idx2word)
    if vectors.shape[1] != embedding.embedding_dim:
        raise ValueError(
            f"{path}: vectors have {vectors.shape[1]} dimensions, but word_dim is {embedding.embedding_dim}"
        )
    with torch.no_grad():
        embedding.weight[torch.from_numpy(found)] = torch.from_numpy(vectors).to(embedding.weight)
    return len(found)


def _read_text(path: Path, file: BinaryIO, numbers: dict[bytes, int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows: dict[int, NDArray[np.float32]] = {}
    promised, dim, number, empty = None, None, 0, 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if number == 1 and line[:1] == _PICKLE:
            raise ValueError(f"{path}: a gzipped pickle; save KeyedVectors uncompressed")
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"{path}, line {number}: longer than any line of word vectors")
        line = line.rstrip()
        if not line:
            empty = empty or number
            continue
        if empty:
            raise ValueError(f"{path}, line {empty}: empty, but not the end")
        spaces = line.count(b" ")
        if dim is None:
            header = line.split()
            if number == 1 and len(header) == 2 and all(field.isdigit() and len(field) < 19 for field in header):
                promised, dim = int(header[0]), int(header[1])
                if not dim:
                    raise ValueError(f"{path}, line 1: promises vectors of no dimensions")
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
    found = sorted(rows)
    vectors = np.stack([rows[place] for place in found]) if found else np.zeros((0, dim), np.float32)
    return vectors, np.array(found, np.int64)


def _parse(fields: list[bytes], place: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(field) for field in fields]).astype(np.float32)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{place}: not all numbers are finite in float32")
    return vector


class _KeyedVectors:
    """What stands for gensim's class: its attributes, and no code."""


class _Dtype:
    """What stands for NumPy's dtype: the arguments and the state that it is made of."""

    def __init__(self, kind: object, *_: object) -> None:
        self.kind = kind
        self.state: object = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def name(self) -> str | None:
        """As the .npy format spells it."""
        if not isinstance(self.kind, str) or not isinstance(self.state, tuple) or len(self.state) < 2:
            return None
        return f"{self.state[1]}{self.kind}"


class _Array:
    """What stands for an array or a scalar of NumPy's until its parts are checked."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _scalar(*_: object) -> None:
    """What stands for a scalar of NumPy's: counts of words, say, which nobody reads here."""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("gensim.models.keyedvectors", "KeyedVectors"): _KeyedVectors,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of KeyedVectors") from None


def _read_keyed_vectors(
    path: Path, file: BinaryIO, words: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:  # which reads no more than there is
        try:
            saved = _Unpickler(cast(Any, mapping)).load()
        except Exception as error:  # a malformed pickle can raise anything
            raise ValueError(f"{path}: not a readable KeyedVectors file ({error})") from error
    keys = getattr(saved, "index_to_key", None) if isinstance(saved, _KeyedVectors) else None
    if not isinstance(keys, list):
        raise ValueError(f"{path}: not KeyedVectors of gensim 4: no list index_to_key")
    vectors = _stored_vectors(path, vars(saved).get("vectors"))
    if len(keys) > len(vectors):
        raise ValueError(f"{path}: {len(keys)} words, but {len(vectors)} vectors")
    wanted = {word: number for number, word in enumerate(words)}
    rows: dict[int, int] = {}
    for row, key in enumerate(keys):
        if not isinstance(key, str):
            raise ValueError(f"{path}: index_to_key[{row}] is no word")
        place = wanted.get(key)
        if place is not None:
            rows.setdefault(place, row)
    found = np.array(sorted(rows), np.int64)
    with np.errstate(over="ignore"):
        chosen = vectors[[rows[place] for place in found.tolist()]].astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(chosen).all(axis=1))
    if len(wrong):
        word = words[found[wrong[0]]]
        raise ValueError(f"{path}: the vector of {word!r} is not finite in float32")
    return chosen, found


def _stored_vectors(path: Path, vectors: object) -> NDArray[Any]:
    """The array (words, dimensions), mapped from the file beside where gensim put it there."""
    if vectors is None:
        return map_array(f"{path}.vectors.npy", ndim=2, dtypes=_DTYPES)
    state = vectors.state if isinstance(vectors, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError(f"{path}: its vectors are no array")
    _, shape, dtype, fortran, contents = state
    name = dtype.name() if isinstance(dtype, _Dtype) else None
    if name not in _DTYPES or fortran is not False or not isinstance(contents, bytes):
        raise ValueError(f"{path}: its vectors are no floating-point array in C order")
    if not isinstance(shape, tuple) or len(shape) != 2 or any(type(size) is not int or size < 1 for size in shape):
        raise ValueError(f"{path}: its vectors must have 2 dimensions, none of them empty, got {shape}")
    if shape[0] * shape[1] * np.dtype(name).itemsize != len(contents):
        raise ValueError(f"{path}: {len(contents)} bytes are no vectors of shape {shape}")
    return np.frombuffer(contents, name).reshape(shape)
