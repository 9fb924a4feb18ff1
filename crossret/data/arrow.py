"""Regions in a column of Arrow's lists, on the disk or in memory, read as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024  # rows looked at at a time


class ArrowRegions:
    """A column of lists of lists of numbers as an array (rows, most, dim) that is read as it is indexed.

    Attributes:
        lengths: (rows,) int64, the lists of each row; behind them is zero.
        shape, dtype, ndim: as of an array; float16 stays so, others are read as float32.
    """

    ndim = 3

    def __init__(self, dataset: Any, column: str, place: str) -> None:
        check_column(dataset, column, place)
        self._rows = dataset.select_columns([column]).with_format("arrow")
        lengths: list[NDArray[np.int64]] = []
        dim = 0
        for first in range(0, len(dataset), _BLOCK):
            lists = self._lists(slice(first, first + _BLOCK))
            kind = str(getattr(getattr(lists.type, "value_type", None), "value_type", lists.type))
            if kind not in ("halffloat", "float", "double"):
                raise ValueError(f"{place}: must be lists of lists of floating point, got {lists.type}")
            lengths.append(_lengths(lists))
            empty = np.flatnonzero(lengths[-1] < 1)
            if len(empty):
                raise ValueError(f"{place}, row {first + empty[0]}: holds nothing")
            widths = _lengths(lists.flatten())
            if not widths[0]:
                raise ValueError(f"{place}, row {first}: a region of no numbers")
            dim = dim or int(widths[0])
            other = np.flatnonzero(widths != dim)
            if len(other):
                row = first + np.searchsorted(lengths[-1].cumsum(), other[0], side="right")
                raise ValueError(f"{place}, row {row}: a region of {widths[other[0]]} numbers, others have {dim}")
        self.lengths = np.concatenate(lengths)
        self.dtype = np.dtype(np.float16 if kind == "halffloat" else np.float32)
        self.shape = len(dataset), int(self.lengths.max()), dim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.floating]:
        if isinstance(rows, (int, np.integer)):
            return self[[int(rows)]][0]
        lists = self._lists(rows.tolist() if isinstance(rows, np.ndarray) else rows)
        read = np.zeros((len(lists), *self.shape[1:]), self.dtype)
        there = np.arange(self.shape[1]) < _lengths(lists)[:, None]
        read[there] = lists.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, self.shape[2])
        return read

    def _lists(self, rows: Any) -> Any:
        column = self._rows[rows].column(0).combine_chunks()
        return getattr(column, "storage", column)  # an Array2D has its lists in `storage`


def _lengths(lists: Any) -> NDArray[np.int64]:
    """Length of each list, zero where it is null."""
    from pyarrow import compute

    return compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def check_column(dataset: Any, column: str, place: str) -> None:
    """Raise a ValueError that begins with the place where a data set has no such column, or no rows."""
    if column not in dataset.column_names:
        raise ValueError(f"{place}: no such column; there is {', '.join(dataset.column_names)}")
    if not len(dataset):
        raise ValueError(f"{place}: holds nothing")
