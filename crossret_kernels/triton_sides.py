"""One side of a call as Triton's host code knows it: where its rows lie, and its lengths on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend

MOST_ROWS = 2**31 - 2**16  # tables of rows are int32; blocks of them may reach beyond the last

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class HostSide:
    """A side's features, and its lengths on the host.

    Attributes:
        features: as the caller has them, rows contiguous: padded (n, L, D) or packed (rows, D).
        packed: which of the two.
        item_stride, row_stride: elements between items, 0 where packed, and between rows.
        lengths: (n,) int32.
        starts: (n + 1,) int32, where items would begin if packed.
        places: (rows,) int32, where in its item a row lies; None where rows follow one another.
        longest: rows of the longest item.
        key: what tells sides of other lengths apart.
    """

    features: Tensor
    packed: bool
    item_stride: int
    row_stride: int
    lengths: Ints
    starts: Ints
    places: Ints | None
    longest: int
    key: tuple[object, ...]

    @classmethod
    def of(
        cls, values: Tensor, offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None, *, may_be_empty: bool
    ) -> HostSide:
        """From what operations take; lengths are waited for where they are on the device.

        Checked here too, for inside torch.compile nothing else looks at them, and kernels read by them.

        Raises:
            ValueError: an item is empty that must not be, or has rows that are not there.
            UnsupportedByBackend: more rows than tables can name.
        """
        if values.stride(-1) != 1 or min(values.stride()) < 0:
            values = values.contiguous()
        integers = offsets if offsets is not None else lengths if lengths is not None else mask
        given = None if integers is None else integers.cpu().numpy()
        places = None
        if offsets is not None:
            starts = given
            counts = np.diff(given)
            if len(starts) and (starts[0] != 0 or starts[-1] != values.size(0)):
                raise ValueError(f"offsets reach from {starts[0]} to {starts[-1]}, but there are {values.size(0)} rows")
            item_stride, row_stride, most = 0, values.stride(0), values.size(0)
        else:
            n, most, _ = values.shape
            item_stride, row_stride = values.stride(0), values.stride(1)
            if mask is not None:
                counts = given.sum(1)
                places = np.nonzero(given)[1].astype(np.int32)
            else:
                counts = np.full(n, most) if given is None else given
            starts = np.zeros(n + 1, np.int64)
            np.cumsum(counts, out=starts[1:])
        shortest, longest = (int(counts.min()), int(counts.max())) if counts.size else (1, 0)
        if shortest < (0 if may_be_empty else 1) or longest > most:
            wrong = int(np.flatnonzero((counts < (0 if may_be_empty else 1)) | (counts > most))[0])
            raise ValueError(f"item {wrong} has length {counts[wrong]}, it must lie in 1..{most}")
        n_rows = int(starts[-1]) if counts.size else 0
        if n_rows >= MOST_ROWS:
            raise UnsupportedByBackend(
                f"backend 'triton' cannot serve this call: it takes up to {MOST_ROWS - 1} rows of a side, these are "
                f"{n_rows}"
            )
        key = (len(counts), most, offsets is None, mask is None, None if given is None else given.tobytes())
        return cls(
            values, offsets is not None, item_stride, row_stride, counts.astype(np.int32), starts.astype(np.int32),
            places, longest, key,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    @property
    def unit(self) -> int:
        """Elements of 16 bytes where every row begins at a multiple of them, so that they are read at once; else 1."""
        step = 16 // self.features.element_size()
        aligned = self.features.data_ptr() % 16 == 0 and not (self.item_stride % step or self.row_stride % step)
        return step if aligned and max(self.item_stride, self.row_stride) < 2**31 else 1

    @property
    def far(self) -> bool:
        """Whether strides take more than 32 bits."""
        return max(self.item_stride, self.row_stride) >= 2**31
