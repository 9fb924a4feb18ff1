"""Items of any length cut into blocks of rows: what a Triton kernel reads that sums gradients, a block a program.

Plans are made on the host in NumPy, once for every set of lengths, and kept on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from crossret_kernels.kept_plans import kept_plan_of_side, on_device
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import Ints, first_rows_of, lengths_of

BLOCK_ROWS = (16, 32, 64)
BLOCK_COST = 12  # rows whose product costs what a block costs besides


@dataclass(frozen=True)
class RowBlocks:
    """A side's rows in blocks, each of one item; tables are int32 on the device.

    Attributes:
        size: the most rows of a block, a power of two.
        table: (blocks, 4): a block's first row, counted through all items' rows, padding included; rows of its item
            from it on, of which the block has at most its size; its item; and the place of its first row in that.
        borders: (items + 1,): item k has blocks borders[k] to borders[k + 1].
        on_host: the borders.
    """

    size: int
    table: Tensor
    borders: Tensor
    on_host: Ints

    @property
    def count(self) -> int:
        return int(self.on_host[-1])


@dataclass(frozen=True)
class ValidRows:
    """A side's rows without padding, numbered through; tables are int32 on the device.

    Attributes:
        rows: (count,): which row, counted through all items' rows, padding included.
        items: (count,): whose it is.
        starts: (items,): the number of an item's first row.
        count: of rows.
    """

    rows: Tensor
    items: Tensor
    starts: Tensor
    count: int


def cut(lengths: Ints, first_rows: Ints, size: int) -> tuple[Ints, Ints]:
    """The table and the borders of `RowBlocks`."""
    blocks = -(-lengths // size)
    borders = np.concatenate([[0], blocks.cumsum()])
    items = np.repeat(np.arange(len(lengths)), blocks)
    starts = (np.arange(borders[-1]) - borders[items]) * size
    return np.stack([first_rows[items] + starts, lengths[items] - starts, items, starts], 1), borders


def block_rows(lengths: Ints, largest: int) -> int:
    """The size of blocks that take least for these items: few of them, and few rows beyond ends."""
    sizes = [size for size in BLOCK_ROWS if size <= largest]
    return min(sizes, key=lambda size: int((-(-lengths // size)).sum()) * (size + BLOCK_COST))


def blocks_of(side: Ragged, largest: int) -> RowBlocks:
    """The side's rows in blocks of the best size up to the largest, made at the first call with its lengths."""

    def make() -> RowBlocks:
        lengths = lengths_of(side)
        size = block_rows(lengths, largest)
        table, borders = cut(lengths, first_rows_of(side), size)
        table_there, borders_there = on_device(side.values.device, table, borders)
        return RowBlocks(size, table_there, borders_there, borders)

    return kept_plan_of_side(RowBlocks, (largest,), side, make)


def valid_rows_of(side: Ragged) -> ValidRows:
    """The side's rows without padding, made at the first call with its lengths."""

    def make() -> ValidRows:
        lengths = lengths_of(side)
        items = np.repeat(np.arange(len(lengths)), lengths)
        starts = lengths.cumsum() - lengths
        rows = first_rows_of(side)[items] + np.arange(len(items)) - starts[items]
        rows_there, items_there, starts_there = on_device(side.values.device, rows, items, starts)
        return ValidRows(rows_there, items_there, starts_there, len(items))

    return kept_plan_of_side(ValidRows, (), side, make)
