"""Features read some items at a time: tensors in memory, or arrays on the disk that may be far larger than it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.inputs.call import Features, Lengths, as_ragged
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import (
    Array,
    SideNames,
    as_int64,
    as_integers,
    as_tensor,
    check_alone,
    check_array,
    check_floating,
    is_packed,
)

# Bytes of features in a block: enough to hide the cost of a call, few beside any machine's memory.
BLOCK_BYTES = 32 * 2**20

_DTYPES = {
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}

Block = TypeVar("Block", covariant=True)
Chosen = NDArray[np.int64]


class ItemBlocks(Protocol[Block]):
    """Items of one side, read in runs of successive ones."""

    def __len__(self) -> int: ...

    def runs(self, most: int) -> list[slice]:
        """All items in order, in runs of bounded bytes and at most `most` items; of no items, one empty run."""

    def __getitem__(self, run: slice) -> Block:
        """The items of one run."""


class Items(ItemBlocks[Block], Protocol[Block]):
    """Items of one side, read in runs of successive ones or, some of them alone, as they are chosen."""

    def chosen(self, items: Chosen) -> Iterator[tuple[slice, Block]]:
        """Blocks of bounded bytes of these items (m,), which ascend: which of the m a block holds, and the block."""


def bounded_runs(item_bytes: NDArray[np.int64], most: int, bound: int | None = None) -> list[slice]:
    """Successive items in runs of at most `most` that take bounded bytes padded to their longest, or of a single one.

    Args:
        item_bytes: (n,) what each takes alone, at least 1, or anything else that is bounded.
    """
    runs: list[slice] = []
    if not len(item_bytes):
        return runs
    bound = BLOCK_BYTES if bound is None else bound
    window = min(most, max(1, bound // int(item_bytes.min())))
    start = 0
    while start < len(item_bytes):
        longest = np.maximum.accumulate(item_bytes[start : start + window])
        padded_bytes = longest * np.arange(1, len(longest) + 1)
        stop = start + max(1, int(np.searchsorted(padded_bytes, bound, side="right")))
        runs.append(slice(start, stop))
        start = stop
    return runs


@dataclass(frozen=True)
class FeatureBlocks:
    """One side's features; a block of them is ``(features, lengths, mask)`` as the scores take them.

    Attributes:
        values: (n, L, D) padded, (rows, D) packed, or a list of (L_i, D) items.
        offsets: (n + 1,) int64 on the CPU, where each item's rows begin among all that are stored, and where they end.
        lengths: (n,) int64, valid rows of padded items; None where all are or a mask tells, and for the other layouts.
        mask: (n, L) bool, valid rows of padded items; None where there is none.
        block_rows: how many rows a block may have, unless a single item has more.
        staging: (≥ block_rows, D) what blocks of an array are read into; empty for tensors.
        device: where such blocks go.
        factors: (n, …) what is kept of the items besides, the last of what a block then has; None where nothing is.
    """

    values: Array | Sequence[Array]
    offsets: Tensor
    lengths: Tensor | None
    mask: Tensor | None
    block_rows: int
    staging: Tensor
    device: torch.device
    factors: Array | None = None

    @classmethod
    def of(
        cls,
        features: Features,
        lengths: Lengths,
        mask: Array | None = None,
        *,
        names: SideNames,
        device: torch.device,
        dtype: torch.dtype | None = None,
        empty: bool = False,
        factors: Array | None = None,
    ) -> FeatureBlocks:
        """Checks one side as `as_ragged` does, the whole of it, without reading or copying features.

        Args:
            features, lengths, mask, names, empty: as `as_ragged` takes them.
            device: where blocks of an array go; tensors stay where they are.
            dtype: what blocks of an array are cast to; None leaves them as they are.
        """
        name, lengths_name = names.features, names.lengths
        if isinstance(features, Ragged):
            check_alone(lengths, mask, names, "a Ragged knows its lengths")
            features, lengths, mask = features.as_given()
        sizes = None if lengths is None else as_integers(lengths, lengths_name)
        values: Any = features
        check: Any = features
        if isinstance(features, (Tensor, np.ndarray)):
            check = _stand_in(features, name)
        elif is_packed(features):
            values = features[0]
            check = (_stand_in(values, f"{name}[0]"), as_tensor(features[1], f"{name}[1] (cu_seqlens)"))
        elif isinstance(features, Sequence):
            check = [_stand_in(feature, f"{name}[{index}]") for index, feature in enumerate(features)]
        ragged = as_ragged(check, sizes, mask, names, empty)
        if isinstance(check, Tensor):
            offsets = torch.arange(len(ragged) + 1) * check.size(1)
        elif isinstance(check, tuple):
            offsets = as_int64(check[1], f"{name}[1] (cu_seqlens)").cpu()
        else:
            offsets = torch.tensor([0, *(len(feature) for feature in check)]).cumsum(0)
        value_dtype = ragged.values.dtype
        dim, dtype = ragged.values.size(-1), dtype or value_dtype
        block_rows = BLOCK_BYTES // (dim * max(value_dtype.itemsize, dtype.itemsize))
        # One buffer for all blocks: fresh ones of this size would fragment the heap, and fault page by page.
        longest = int(offsets.diff().max()) if len(ragged) else 0
        rows = min(max(block_rows, longest), int(offsets[-1])) if isinstance(values, np.ndarray) else 0
        staging = torch.empty(rows, dim, dtype=dtype)
        if factors is not None and len(factors) != len(ragged):
            raise ValueError(f"factors must be those of {len(ragged)} items, not of {len(factors)}")
        return cls(values, offsets, sizes, ragged.mask, block_rows, staging, device, factors)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def runs(self, most: int) -> list[slice]:
        """Runs of at most `BLOCK_BYTES` of features, or of a single item; see `ItemBlocks.runs`."""
        runs: list[slice] = []
        start = 0
        while start < len(self) or not runs:
            fitting = int(torch.searchsorted(self.offsets, self.offsets[start] + self.block_rows, right=True)) - 1
            stop = min(max(fitting, start + 1), start + most, len(self))
            runs.append(slice(start, stop))
            start = stop
        return runs

    def __getitem__(self, run: slice) -> tuple[Any, ...]:
        """Views of tensors; of an array a copy, which the next one takes the place of."""
        return (*self._block(run), *(() if self.factors is None else (self.factors[run],)))

    def _block(self, run: slice) -> tuple[Features, Tensor | None, Tensor | None]:
        if not isinstance(self.values, (Tensor, np.ndarray)):
            return [self._item(item) for item in self.values[run]], None, None
        if self.values.ndim == 3:
            mask = None if self.mask is None else self.mask[run]
            if mask is not None and isinstance(self.values, np.ndarray):
                mask = mask.to(self.device)
            return self._read(self.values[run]), None if self.lengths is None else self.lengths[run], mask
        offsets = self.offsets[run.start : run.stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return (self._read(self.values[first:last]), offsets - first), None, None

    def chosen(self, items: Chosen) -> Iterator[tuple[slice, tuple[Features, Tensor | None, Tensor | None]]]:
        """Blocks of some items; see `Items.chosen`."""
        places = torch.from_numpy(items)
        row_bytes = self.staging.size(1) * self.staging.itemsize
        for run in bounded_runs(self.offsets.diff()[places].clamp(min=1).numpy() * row_bytes, len(items)):
            yield run, self.take(places[run])

    def take(self, items: Tensor) -> tuple[Features, Tensor | None, Tensor | None]:
        """The items of these places (n,) int64 on the CPU, in this order: a copy, of them alone."""
        if not isinstance(self.values, (Tensor, np.ndarray)):
            return [self._item(self.values[item]) for item in items.tolist()], None, None
        if self.values.ndim == 3:
            lengths = None if self.lengths is None else self.lengths[items.to(self.lengths.device)]
            mask = None if self.mask is None else self.mask[items.to(self.mask.device)].to(self.device)
            return self._copy(self.values, items), lengths, mask
        begins, sizes = self.offsets[items], self.offsets.diff()[items]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        rows = torch.arange(int(offsets[-1])) + (begins - offsets[:-1]).repeat_interleave(sizes)
        return (self._copy(self.values, rows), offsets), None, None

    def _copy(self, values: Tensor | NDArray[Any], places: Tensor) -> Tensor:
        if isinstance(values, Tensor):
            return values[places.to(values.device)]
        copy = as_tensor(np.asarray(values[places.numpy()]), "features").to(self.device, self.staging.dtype)
        release_pages(values)
        return copy

    def _item(self, item: Array) -> Tensor:
        return item if isinstance(item, Tensor) else as_tensor(item, "item").to(self.device, self.staging.dtype)

    def _read(self, values: Tensor | NDArray[Any]) -> Tensor:
        if isinstance(values, Tensor):
            return values
        block = self.staging[: values.size // values.shape[-1]].view(values.shape)
        # Numbers beyond float32 become infinite, and show in the scores.
        if values.flags.c_contiguous and values.flags.aligned:
            block.copy_(as_tensor(values, "features"))  # of float16 some eight times as fast as NumPy
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(block.numpy(), values)
        release_pages(values)
        return block.to(self.device)


def device_of(*sides: Features) -> torch.device:
    """Device of the first tensor among features; the CPU where all are arrays."""
    for side in sides:
        side = side.values if isinstance(side, Ragged) else side
        first = side[0] if isinstance(side, (tuple, list)) and side else side
        if isinstance(first, Tensor):
            return first.device
    return torch.device("cpu")


def _stand_in(features: Any, name: str) -> Any:
    """A tensor of the same shape and dtype without values: checks on it touch no memory and copy none."""
    if isinstance(features, np.ndarray):
        check_array(features, name)
        if features.dtype not in _DTYPES:
            raise TypeError(f"{name} must be float16, float32 or float64, not {features.dtype}")
        return torch.empty(features.shape, dtype=_DTYPES[features.dtype], device="meta")
    if isinstance(features, Tensor):
        check_floating(features, name)
        return torch.empty_like(features, device="meta")
    return features


def release_pages(values: NDArray[Any]) -> None:
    """Takes what was read of a read-only memory map out of this process, or all of the file would become resident."""
    if not isinstance(values, np.memmap) or values.mode != "r":
        return
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # which Windows has not
        base.madvise(mmap.MADV_DONTNEED)
