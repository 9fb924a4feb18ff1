"""One side of a call as the host code of GPU backends sees it: layout on the device, lengths on the host."""

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
from crossret_kernels.inputs.tensors import together_on_host

MOST_ROWS = 2**31 - 2**16  # tables of rows are int32; blocks of rows may reach beyond the last

SIMULATED_SHARED_MEMORY = 227 * 2**10  # where tests run kernels on the CPU; an H200's

Ints = NDArray[np.int32]


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have."""
    return _shared_memory_of(device) if device.type == "cuda" else SIMULATED_SHARED_MEMORY


@cache
def _shared_memory_of(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


class RowLayout(NamedTuple):
    """Layout of a side's rows.

    Attributes:
        item_stride, row_stride: elements between items (0 where packed) and between rows.
        unit: elements of 16 bytes where every row begins at a multiple of them, and loads are that wide; else 1.
        aligned: True where the features begin at a multiple of 16 bytes.
        far: True where encoded strides take more than 32 bits.
    """

    item_stride: int
    row_stride: int
    unit: int
    aligned: bool
    far: bool

    @classmethod
    def of(cls, strides: tuple[int, ...], offset: int, element_size: int) -> RowLayout:
        """`offset`: bytes of the features' address beyond a multiple of 16."""
        item, row = (0, strides[0]) if len(strides) == 2 else strides[:2]
        step, far = 16 // element_size, max(item, row) >= 2**30 - 2
        unaligned = offset or far or item % step or row % step
        return cls(item, row, 1 if unaligned else step, offset == 0, far)


class Side(NamedTuple):
    """One side of a call.

    Attributes:
        features: of the caller, rows contiguous: padded (n, L, D) or packed (rows, D).
        extents: int64 on the device: offsets (n + 1,) of packed items, lengths (n,) of padded ones; None where all have
            L rows.
        places: (n, L) int64, rows of an item that its mask keeps, in order, ahead of all others; None without a mask.
        counts: (n,) int64, checked lengths on the host; None while a CUDA graph is captured, where kernels clamp
            lengths.
        slots: maximal rows of an item that the host knows: L, or the longest packed item's.
        width: rows that kernels are compiled for: L, or the power of two from the longest packed item on, which most
            batches of a training share.
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
        return RowLayout.of(self.features.stride(), self.features.data_ptr() % 16, self.features.element_size())

    def known_counts(self) -> NDArray[np.int64]:
        """Lengths of the items.

        Raises RuntimeError while a CUDA graph is captured, where they cannot be read.
        """
        if self.counts is not None:
            return self.counts
        if self.extents is not None:
            raise RuntimeError(NOT_CAPTURED)
        return np.full(self.n_items, self.slots, np.int64)


def both_sides(arguments: Sequence[Any], may_be_empty: bool, read: bool = True) -> tuple[Side, Side]:
    """Images and captions from an operation's features, offsets, lengths and masks.

    Lengths on a device are copied to the host, both sides' at once, and checked: inside torch.compile nothing else
    checks them. Lengths on the host are copied to the device where kernels `read` them.

    Raises:
        ValueError: an item is empty that must not be, or a length is out of range.
        RuntimeError: a CUDA graph is captured, and lengths are on the host.
        UnsupportedByBackend: more rows than kernels count.
    """
    regions, words = arguments[0], arguments[4]
    region_lengths, word_lengths = _lengths_tensor(*arguments[1:4]), _lengths_tensor(*arguments[5:8])
    first, second = region_lengths, word_lengths
    if capturing(regions.device):
        first, second = None, None
    elif not ((first is None or first.is_cpu) and (second is None or second.is_cpu)):
        first, second = together_on_host((first, second))
    if read and not capturing(regions.device):
        region_lengths, word_lengths = beside(regions.device, region_lengths, word_lengths)
    return _side(regions, region_lengths, first, may_be_empty), _side(words, word_lengths, second, may_be_empty)


def _lengths_tensor(offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The one of them that is given, or None."""
    return offsets if offsets is not None else lengths if lengths is not None else mask


def beside(device: torch.device, *tensors: Tensor | None) -> list[Tensor | None]:
    """Offsets, lengths and masks on the device: those on the host by one copy, as a pageable one each would block the
    host.
    """
    arrays = [x.numpy() for x in tensors if x is not None and x.is_cpu]
    if device.type == "cpu" or not arrays:
        return [*tensors]
    copies = iter(brought(device, *arrays))
    return [next(copies) if x is not None and x.is_cpu else x for x in tensors]


def _side(features: Tensor, lengths: Tensor | None, host_lengths: Tensor | None, may_be_empty: bool) -> Side:
    """A side from its offsets, lengths or mask, and these on the CPU (`host_lengths`), unless a graph is captured."""
    features = features if features.stride(-1) == 1 else features.contiguous()
    packed, masked = features.dim() == 2, lengths is not None and lengths.dtype is torch.bool
    most, places, counts = features.size(-2), None, None
    n_rows = most if packed else features.size(0) * most
    if n_rows >= MOST_ROWS:
        raise UnsupportedByBackend(
            f"no GPU backend serves this call: they take up to {MOST_ROWS - 1} rows of a side, padding included, these "
            f"are {n_rows}"
        )
    if host_lengths is not None:
        values = host_lengths.numpy()
        counts = np.diff(values) if packed else values.sum(1) if masked else values
        if packed and (values[0] != 0 or values[-1] != most):
            raise ValueError(f"offsets reach from {values[0]} to {values[-1]}, but there are {most} rows")
        _check(counts, most, may_be_empty)
    elif lengths is None:
        if not most and not may_be_empty and features.size(0):
            raise ValueError("item 0 has length 0, every item needs at least one row")
    elif packed or lengths.device != features.device:
        raise RuntimeError(
            "a CUDA graph is captured of padded features whose lengths or masks lie on the device alone: what is on "
            "the host, and packed items' offsets, would be those of the capture whenever the graph runs"
        )
    extents = lengths
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
    """The least power of two from `count` on."""
    return 1 << max(count - 1, 0).bit_length()


def precisions(dtype: torch.dtype, reduced: bool) -> tuple[str, str]:
    """Precision of products of features, `reduced` for float32 ones or not, and of all later products."""
    if dtype != torch.float32:
        return "tf32", "tf32"
    return ("tf32", "tf32") if reduced else ("ieee", "tf32x3")
