"""gensim 4's KeyedVectors: a pickle that is read without running anything, its large array beside it or within."""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from crossret.data.word_vectors.found import DTYPES, Found, chosen_rows
from crossret.files.arrays import map_array
from crossret.files.pickled import check_pickle


class _KeyedVectors:
    """Stand-in for gensim's class: its attributes, and no code."""


class _Dtype:
    """Stand-in for NumPy's dtype: the arguments and the state that it is made of."""

    def __init__(self, kind: object, *_: object) -> None:
        self.kind = kind
        self.state: object = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def name(self) -> str | None:
        """Name in the .npy format; None where the state is none of a dtype."""
        if not isinstance(self.kind, str) or not isinstance(self.state, tuple) or len(self.state) < 2:
            return None
        return f"{self.state[1]}{self.kind}"


class _Array:
    """Stand-in for a NumPy array until its parts are checked."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _scalar(*_: object) -> None:
    """Stand-in for a NumPy scalar: a count of words, say, which nobody reads here."""


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


def read_keyed_vectors(path: Path, file: BinaryIO, words: Sequence[str]) -> Found:
    """Vectors of words in what ``KeyedVectors.save`` wrote, ``file`` at ``path``; as ``read_word_vectors``."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:  # which reads no more than there is
        try:
            check_pickle(cast(BinaryIO, mapping), len(mapping))
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
    return chosen_rows(path, vectors, rows, words)


def _stored_vectors(path: Path, vectors: object) -> NDArray[Any]:
    """The array (words, dimensions), mapped from the file beside where gensim put it there."""
    if vectors is None:
        return map_array(f"{path}.vectors.npy", ndim=2, dtypes=DTYPES)
    state = vectors.state if isinstance(vectors, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError(f"{path}: its vectors are no array")
    _, shape, dtype, fortran, contents = state
    name = dtype.name() if isinstance(dtype, _Dtype) else None
    if name not in DTYPES or fortran is not False or not isinstance(contents, bytes):
        raise ValueError(f"{path}: its vectors are no floating-point array in C order")
    if not isinstance(shape, tuple) or len(shape) != 2 or any(type(size) is not int or size < 1 for size in shape):
        raise ValueError(f"{path}: its vectors must have 2 dimensions, none of them empty, got {shape}")
    if shape[0] * shape[1] * np.dtype(name).itemsize != len(contents):
        raise ValueError(f"{path}: {len(contents)} bytes are no vectors of shape {shape}")
    return np.frombuffer(contents, name).reshape(shape)
