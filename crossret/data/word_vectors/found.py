"""Word vectors that a reader has found, and how they are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Found: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Vectors (found, dimensions), and the numbers of the words that they belong to, ascending."""

DTYPES = ("<f2", "<f4", "<f8")  # dtypes of stored vectors


def gathered(vectors: Mapping[int, NDArray[np.float32]], dim: int) -> Found:
    """Vectors of ``dim`` numbers by the numbers of their words."""
    found = sorted(vectors)
    rows = np.stack([vectors[word] for word in found]) if found else np.zeros((0, dim), np.float32)
    return rows, np.array(found, np.int64)


def chosen_rows(path: Path, table: NDArray[Any], rows: Mapping[int, int], words: Sequence[str]) -> Found:
    """Rows of a table that belong to words, with the numbers of these.

    Raises:
        ValueError: one is not finite in float32; names ``path`` and the word.
    """
    found = np.array(sorted(rows), np.int64)
    with np.errstate(over="ignore"):
        chosen = table[[rows[word] for word in found.tolist()]].astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(chosen).all(axis=1))
    if len(wrong):
        raise ValueError(f"{path}: the vector of {words[found[wrong[0]]]!r} is not finite in float32")
    return chosen, found
