"""How successive items of a side are cut up, into tiles, jobs, runs and parts of a bounded workspace."""

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
ALIGNED = 128  # bytes: arrays that begin at other addresses would have kernels compiled for them


def cut(*limits: tuple[NDArray[np.int64] | Sequence[int], int], most_items: int | None = None) -> list[int]:
    """Bounds of groups of successive whole items: of as much and as many as the limits allow, one at least.

    Args:
        limits: pairs of where every item begins in something, and where the last ends, (items + 1,); and the most of it
            that a group has.
        most_items: of a group.
    """
    count = len(limits[0][0]) - 1
    items = np.arange(count)
    ends = np.full(count, count)
    for starts, most in limits:
        of = np.asarray(starts)
        ends = np.minimum(ends, np.searchsorted(of, of[:-1] + most, "right") - 1)
    ends = np.maximum(ends, items + 1)
    if most_items is not None:
        ends = np.minimum(ends, items + most_items)
    bounds, nexts = [0], ends.tolist()
    while bounds[-1] < count:
        bounds.append(nexts[bounds[-1]])
    return bounds


def most_of_parts(rows: tuple[int, int], longest_query: int, most_rows: int, most_cells: int) -> tuple[int, int]:
    """Rows of contexts and of queries that a part has at most, of so many of either side.

    Their similarities are of `most_cells`, or of one item by one: all queries where that leaves room for contexts, else
    about as many of one as of the other. No item is parted.
    """
    queries = max(1, min(rows[1], most_rows, max(most_cells // max(rows[0], 1), isqrt(most_cells))))
    return max(1, min(most_rows, most_cells // max(queries, longest_query))), queries


class PartOfPairs(NamedTuple):
    """Pairs of successive images and captions: where these begin and end."""

    images: tuple[int, int]
    captions: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        return self.images[1] - self.images[0], self.captions[1] - self.captions[0]


def parts_of_pairs(n_images: int, n_captions: int, most: int) -> Iterator[PartOfPairs]:
    """All pairs of at least one image and caption, in parts of at most so many pairs or of one, as even as may be."""
    most = max(1, most)
    images = evenly(n_images, max(isqrt(most), most // n_captions))
    captions = evenly(n_captions, most // max(last - first for first, last in images))
    return map(PartOfPairs._make, product(images, captions))


def evenly(count: int, most: int) -> list[tuple[int, int]]:
    """Where parts of at most so many items begin and end, none of which has two more than another."""
    parts = -(-count // max(1, min(most, count)))
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is captured there."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def brought(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Arrays of any types on the device, by one copy from pinned memory, which the host does not wait for."""
    sizes = [size for array in arrays for size in (array.nbytes, -array.nbytes % ALIGNED)]
    joined = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type != "cpu")
    bytes_of, start = joined.numpy(), 0
    for array in arrays:
        bytes_of[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        start += array.nbytes + -array.nbytes % ALIGNED
    parts = torch.split_with_sizes(joined.to(device, non_blocking=True), sizes)[::2]
    types = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [x.view(own).view(array.shape) for x, own, array in zip(parts, types, arrays, strict=True)]


def on_device(device: torch.device, *tables: NDArray[Any]) -> list[Tensor]:
    """The tables as int32: every batch of a training has new lengths.

    Raises RuntimeError while a CUDA graph is captured, which would copy them again from memory that is others' by then.
    """
    if capturing(device):
        raise RuntimeError(NOT_CAPTURED)
    return brought(device, *(table.astype(np.int32) for table in tables))
