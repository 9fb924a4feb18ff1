"""Candidates: items of a corpus that each query is scored with, as an array, or by the results of an earlier search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import map_array
from crossret.files.features import LENGTH_DTYPES
from crossret.files.json import parse_json_object
from crossret.files.regular import open_regular
from crossret_kernels.extending import NONE

_ARRAY = b"\x93NUMPY"
_LONGEST_LINE = 64 * 2**20  # bytes: the results of one query


def read_candidates(path: Path) -> NDArray[np.integer]:
    """Candidates of every query, (n_queries, K), from a file.

    Args:
        path: an array of integers, .npy, memory-mapped; or JSON lines, one of every query in their order, as `search`
            writes them, of which "results" and in each of these "index" are read.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is neither; names the file and the line.
    """
    with open_regular(path) as file:
        if file.read(len(_ARRAY)) == _ARRAY:
            return map_array(path, ndim=2, dtypes=LENGTH_DTYPES)
        file.seek(0)
        rows = [_indices(line, f"{path}, line {number + 1}", number) for number, line in enumerate(_lines(file, path))]
    if not rows:
        raise ValueError(f"{path}: no candidates")
    padded = np.full((len(rows), max(1, *(len(row) for row in rows))), NONE, np.int64)
    for places, row in zip(padded, rows, strict=True):
        places[: len(row)] = row
    return padded


def _lines(file: Any, path: Path) -> Iterator[bytes]:
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"{path}: a line of more than {_LONGEST_LINE // 2**20} MiB: not what `search` writes")
        yield line


def _indices(line: bytes, place: str, query: int) -> NDArray[np.int64]:
    entry = parse_json_object(line, place)
    if entry.get("query", query) != query:
        raise ValueError(f"{place}: results of query {entry['query']!r}, expected {query}: a line for each, in order")
    results = entry.get("results")
    if not isinstance(results, list):
        raise ValueError(f"{place}: has no list of results")
    indices = np.empty(len(results), np.int64)
    for number, result in enumerate(results):
        index = result.get("index") if isinstance(result, dict) else None
        if type(index) is not int or not NONE <= index < 2**63:  # bool is an int in Python
            raise ValueError(f"{place}: result {number} has no index of an item")
        indices[number] = index
    return indices
