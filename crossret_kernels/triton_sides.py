"""One side of a call as Triton's host code knows it: where its rows lie, and its lengths on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend

MOST_ROWS = 2**31 - 2**16  # tables of rows are int32; blocks of them may reach beyond the last

Ints = NDArray[np.int32]


class Geometry(NamedTuple):
    """How the items of a side follow one another.

    Attributes:
        lengths: (n,) int32.
        starts: (n + 1,) int32, where items would begin if packed.
        places: (rows,) int32, where in its item a row lies; None where rows follow one another.
        longest, n_rows: rows of the longest item, and of all.
    """

    lengths: Ints
    starts: Ints
    places: Ints | None
    longest: int
    n_rows: int


class HostSide:
    """A side's features, and the integers that tell its lengths on the host.

    Attributes:
        features: as the caller has them, rows contiguous: padded (n, L, D) or packed (rows, D).
        packed, masked: whether they are packed; whether a mask tells which rows there are.
        item_stride, row_stride: elements between items, 0 where packed, and between rows.
        unit: elements of 16 bytes where every row begins at a multiple of them, so that they are read at once; else 1.
        aligned: whether they begin at a multiple of 16 bytes.
        far: whether hidden strides take more than 32 bits.
        count: items.
        key: what tells sides of other lengths apart.
    """

    def __init__(self, values: Tensor, offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None) -> None:
        """From what operations take; integers are waited for where they are on the device."""
        strides = values.stride()
        if strides[-1] != 1 or min(strides) < 0:
            values = values.contiguous()
            strides = values.stride()
        self.features = values
        self.packed, self.masked = offsets is not None, mask is not None
        self.item_stride, self.row_stride = (0, strides[0]) if self.packed else (strides[0], strides[1])
        step = 16 // values.element_size()
        self.far = max(self.item_stride, self.row_stride) >= 2**30 - 2
        self.aligned = values.data_ptr() % 16 == 0
        apart = self.item_stride % step or self.row_stride % step or not self.aligned
        self.unit = 1 if apart or self.far else step
        integers = offsets if self.packed else mask if self.masked else lengths
        self._given: NDArray[Any] | None = None if integers is None else integers.cpu().numpy()
        self.count = values.shape[0] if not self.packed or self._given is None else len(self._given) - 1
        given = None if self._given is None else self._given.tobytes()
        self.key = self.count, values.shape[-2], self.packed, self.masked, given

    def geometry(self, may_be_empty: bool) -> Geometry:
        """How the items follow one another.

        Checked here too, for inside torch.compile nothing else looks at lengths, and kernels read by them.

        Raises:
            ValueError: an item is empty that must not be, or has rows that are not there.
            UnsupportedByBackend: more rows than tables can name.
        """
        most, given, places = self.features.shape[-2], self._given, None
        if given is None:
            counts = np.full(self.count, most, np.int64)
        elif self.packed:
            counts = np.diff(given)
            if given[0] != 0 or given[-1] != most:
                raise ValueError(f"offsets reach from {given[0]} to {given[-1]}, but there are {most} rows")
        elif self.masked:
            counts = given.sum(1)
            places = np.nonzero(given)[1].astype(np.int32)
        else:
            counts = given
        least = 0 if may_be_empty else 1
        shortest, longest = (int(counts.min()), int(counts.max())) if self.count else (least, 0)
        if shortest < least or longest > most:
            wrong = int(np.flatnonzero((counts < least) | (counts > most))[0])
            raise ValueError(f"item {wrong} has length {counts[wrong]}, it must lie in {least}..{most}")
        starts = np.zeros(self.count + 1, np.int64)
        counts.cumsum(out=starts[1:])
        n_rows = int(starts[-1])
        if n_rows >= MOST_ROWS:
            raise UnsupportedByBackend(
                f"backend 'triton' cannot serve this call: it takes up to {MOST_ROWS - 1} rows of a side, these are "
                f"{n_rows}"
            )
        return Geometry(counts.astype(np.int32), starts.astype(np.int32), places, longest, n_rows)
