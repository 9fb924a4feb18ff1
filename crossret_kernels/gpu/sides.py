"""One side of a call as the host code of GPU backends knows it: where its rows lie, its lengths on the host; and what
features are multiplied in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.gpu.planning import NOT_CAPTURED, brought, capturing
from crossret_kernels.inputs.ragged import together_on_host

MOST_ROWS = 2**31 - 2**16  # tables of rows are int32; blocks of them may reach beyond the last

SIMULATED_SHARED_MEMORY = 227 * 2**10  # where tests run kernels on the CPU: an H200's, or what they choose

Ints = NDArray[np.int32]


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have."""
    return _shared_memory_of(device) if device.type == "cuda" else SIMULATED_SHARED_MEMORY


@cache
def _shared_memory_of(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


class RowLayout(NamedTuple):
    """Where a side's rows lie.

    Attributes:
        item_stride, row_stride: elements between items, 0 where packed, and between rows.
        unit: elements of 16 bytes where every row begins at a multiple of them, so that they are read at once; else 1.
        aligned: whether they begin at a multiple of 16 bytes.
        far: whether hidden strides take more than 32 bits.
    """

    item_stride: int
    row_stride: int
    unit: int
    aligned: bool
    far: bool

    @classmethod
    def of(cls, strides: tuple[int, ...], offset: int, element_size: int) -> RowLayout:
        """Of features that begin so many bytes from a multiple of 16."""
        item, row = (0, strides[0]) if len(strides) == 2 else strides[:2]
        step, far = 16 // element_size, max(item, row) >= 2**30 - 2
        apart = offset or far or item % step or row % step
        return cls(item, row, 1 if apart else step, offset == 0, far)


class Side(NamedTuple):
    """One side of a call, as host code knows it and as kernels of both GPU backends read it.

    Attributes:
        features: as the caller has them, rows contiguous: padded (n, L, D) or packed (rows, D).
        extents: on the device, int64: of packed items offsets (n + 1,), of padded ones lengths (n,); None where all
            have L rows.
        places: (n, L) int64, where in its item a row lies of those that a mask keeps, in order; None without a mask.
        counts: (n,) int64, the items' lengths on the host, checked; None while a CUDA graph is captured, where nothing
            can be looked at: kernels hold lengths within the item's places.
        slots: rows that an item has at most, as far as known: L, or the longest packed one's.
        width: what kernels are compiled for in its place: L, or the power of two from the longest packed one on, the
            same for most batches of a training.
    """

    features: Tensor
    extents: Tensor | None
    places: Tensor | None
    counts: NDArray[np.int64] | None
    slots: int
    width: int

    @property
    def packed(self) -> bool:
        return self.features.dim() == 2

    @property
    def n_items(self) -> int:
        if self.packed:
            assert self.extents is not None
            return self.extents.size(0) - 1
        return self.features.size(0)

    @property
    def row_layout(self) -> RowLayout:
        """How rows lie."""
        return RowLayout.of(self.features.stride(), self.features.data_ptr() % 16, self.features.element_size())

    def known_counts(self) -> NDArray[np.int64]:
        """The items' lengths, where a call has to know them.

        Raises RuntimeError where they cannot be looked at: while a CUDA graph is captured.
        """
        if self.counts is not None:
            return self.counts
        if self.extents is not None:
            raise RuntimeError(NOT_CAPTURED)
        return np.full(self.n_items, self.slots, np.int64)


def both_sides(arguments: Sequence[Any], may_be_empty: bool, read: bool = True) -> tuple[Side, Side]:
    """Images and captions from what operations take: features, offsets, lengths and mask of either.

    What tells lengths on a device is waited for, once for both sides, and checked: inside torch.compile nothing else
    looks at it. What is on the host is copied to the device if kernels are to `read` it.

    Raises:
        ValueError: an item is empty that must not be, or has rows that are not there.
        RuntimeError: a CUDA graph is captured, and lengths are on the host.
        UnsupportedByBackend: more rows than kernels count.
    """
    regions, words = arguments[0], arguments[4]
    of_regions, of_words = _lengths_tensor(*arguments[1:4]), _lengths_tensor(*arguments[5:8])
    first, second = of_regions, of_words
    if capturing(regions.device):
        first, second = None, None
    elif not ((first is None or first.is_cpu) and (second is None or second.is_cpu)):
        first, second = together_on_host((first, second))
    if read and not capturing(regions.device):
        of_regions, of_words = beside(regions.device, of_regions, of_words)
    return _side(regions, of_regions, first, may_be_empty), _side(words, of_words, second, may_be_empty)


def _lengths_tensor(offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """What there is of these."""
    return offsets if offsets is not None else lengths if lengths is not None else mask


def beside(device: torch.device, *tensors: Tensor | None) -> list[Tensor | None]:
    """Offsets, lengths and masks on the device: those on the host by one copy, as each pageable one holds it up."""
    far = [x.numpy() for x in tensors if x is not None and x.is_cpu]
    if device.type == "cpu" or not far:
        return [*tensors]
    there = iter(brought(device, *far))
    return [next(there) if x is not None and x.is_cpu else x for x in tensors]


def _side(features: Tensor, own: Tensor | None, seen: Tensor | None, may_be_empty: bool) -> Side:
    """One of them: `own` are its offsets, lengths or mask, `seen` the same on the CPU, unless a graph is captured."""
    features = features if features.stride(-1) == 1 else features.contiguous()
    packed, masked = features.dim() == 2, own is not None and own.dtype is torch.bool
    most, places, counts = features.size(-2), None, None
    n_rows = most if packed else features.size(0) * most
    if n_rows >= MOST_ROWS:
        raise UnsupportedByBackend(
            f"no GPU backend serves this call: they take up to {MOST_ROWS - 1} rows of a side, padding included, these "
            f"are {n_rows}"
        )
    if seen is not None:
        values = seen.numpy()
        counts = np.diff(values) if packed else values.sum(1) if masked else values
        if packed and (values[0] != 0 or values[-1] != most):
            raise ValueError(f"offsets reach from {values[0]} to {values[-1]}, but there are {most} rows")
        _check(counts, most, may_be_empty)
    elif own is None:
        if not most and not may_be_empty and features.size(0):
            raise ValueError("item 0 has length 0, every item needs at least one row")
    elif packed or own.device != features.device:
        raise RuntimeError(
            "a CUDA graph is captured of padded features whose lengths or masks lie on the device alone: what is on "
            "the host, and packed items' offsets, would be those of the capture whenever the graph runs"
        )
    extents = own
    if masked:
        assert extents is not None
        extents, places = extents.sum(1), extents.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    longest = int(counts.max(initial=0)) if packed and counts is not None else most
    return Side(features, extents, places, counts, longest, power_from(longest) if packed else most)


def _check(counts: NDArray[Any], most: int, may_be_empty: bool) -> None:
    least = 0 if may_be_empty else 1
    if len(counts) and (np.minimum.reduce(counts) < least or np.maximum.reduce(counts) > most):
        wrong = int(np.flatnonzero((counts < least) | (counts > most))[0])
        raise ValueError(f"item {wrong} has length {counts[wrong]}, it must lie in {least}..{most}")


def power_from(count: int) -> int:
    """The least power of two that is not below it."""
    return 1 << max(count - 1, 0).bit_length()


def precisions(dtype: torch.dtype, reduced: bool) -> tuple[str, str]:
    """Of products of features, float32 ones `reduced` or not, and of the products that come after them."""
    if dtype != torch.float32:
        return "tf32", "tf32"
    return ("tf32", "tf32") if reduced else ("ieee", "tf32x3")
