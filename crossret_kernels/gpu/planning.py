"""Parts of a call: successive items of a side cut into groups, and copies of tables to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NOT_CAPTURED = (
    "no CUDA graph can be captured of a call that comes in several parts: it is cut up by its items' lengths on the "
    "host. Capture calls of fewer items"
)
ALIGNED = 128  # bytes: tensors at other addresses would need kernels of their own


def cut(*limits: tuple[NDArray[np.int64] | Sequence[int], int], most_items: int | None = None) -> list[int]:
    """Bounds of groups of successive whole items: as many items as the limits allow, at least one.

    Args:
        limits: pairs of the items' bounds (items + 1,) in some unit, and the maximum of it in a group.
        most_items: maximal items of a group.
    """
    count = len(limits[0][0]) - 1
    items = np.arange(count)
    ends = np.full(count, count)
    for starts, most in limits:
        edges = np.asarray(starts)
        ends = np.minimum(ends, np.searchsorted(edges, edges[:-1] + most, "right") - 1)
    ends = np.maximum(ends, items + 1)
    if most_items is not None:
        ends = np.minimum(ends, items + most_items)
    bounds, nexts = [0], ends.tolist()
    while bounds[-1] < count:
        bounds.append(nexts[bounds[-1]])
    return bounds


def most_of_parts(rows: tuple[int, int], longest_query: int, most_rows: int, most_cells: int) -> tuple[int, int]:
    """Maximal rows of contexts and of queries of a part, of so many rows of either side.

    Their similarities take `most_cells`, or an item's by an item's: all queries where that leaves room for contexts,
    else about as many rows of either. No item is split.
    """
    queries = max(1, min(rows[1], most_rows, max(most_cells // max(rows[0], 1), isqrt(most_cells))))
    return max(1, min(most_rows, most_cells // max(queries, longest_query))), queries


class PairPart(NamedTuple):
    """Pairs of successive images and captions: bounds of both."""

    images: tuple[int, int]
    captions: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        return self.images[1] - self.images[0], self.captions[1] - self.captions[0]


def parts_of_pairs(n_images: int, n_captions: int, most: int) -> Iterator[PairPart]:
    """All pairs of at least one image and caption, in parts of at most `most` pairs, at least one, of nearly equal
    size.
    """
    most = max(1, most)
    images = evenly(n_images, max(isqrt(most), most // n_captions))
    captions = evenly(n_captions, most // max(last - first for first, last in images))
    return map(PairPart._make, product(images, captions))


def evenly(count: int, most: int) -> list[tuple[int, int]]:
    """Bounds of parts of at most `most` items whose sizes differ by at most one."""
    parts = -(-count // max(1, min(most, count)))
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def capturing(device: torch.device) -> bool:
    """True while a CUDA graph is captured on the device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def brought(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Arrays of any dtypes on the device, by one copy from pinned memory that the host does not wait for."""
    sizes = [size for array in arrays for size in (array.nbytes, -array.nbytes % ALIGNED)]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type != "cpu")
    bytes_of, start = buffer.numpy(), 0
    for array in arrays:
        bytes_of[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        start += array.nbytes + -array.nbytes % ALIGNED
    parts = torch.split_with_sizes(buffer.to(device, non_blocking=True), sizes)[::2]
    types = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [x.view(dtype).view(array.shape) for x, dtype, array in zip(parts, types, arrays, strict=True)]


def aligned(x: Tensor) -> Tensor:
    """x, or a copy that begins at a multiple of 16 bytes."""
    return x.clone() if x.data_ptr() % 16 else x


def as_wanted(made: Sequence[Tensor] | None, of: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """Gradients of operands in their shapes, zeros of None, and empty where they are not wanted: what was made may have
    more rows and columns, which are left out, or fewer, all others being zeros.
    """
    if made is None:
        return tuple(torch.zeros_like(x) if own else x.new_empty(0) for x, own in zip(of, wanted, strict=True))
    outs = []
    for x, gradient, own in zip(of, made, wanted, strict=True):
        part = gradient[tuple(slice(size) for size in x.shape)]
        whole = part.contiguous() if part.shape == x.shape else torch.zeros_like(x)
        if part.shape != x.shape and own:
            whole[tuple(slice(size) for size in part.shape)] = part
        outs.append(whole if own else x.new_empty(0))
    return tuple(outs)


def on_device(device: torch.device, *tables: NDArray[Any]) -> list[Tensor]:
    """Tables as int32 tensors on the device.

    Raises RuntimeError while a CUDA graph is captured: its replays would copy from memory that has been freed.
    """
    if capturing(device):
        raise RuntimeError(NOT_CAPTURED)
    return brought(device, *(table.astype(np.int32) for table in tables))
