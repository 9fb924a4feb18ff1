"""Whole items packed into tiles of fixed size: what a Triton kernel reads to know whose row stands where.

A tile is a run of slots. Each item's rows take successive slots of one tile; a slot that no row takes is empty. Plans
are made on the host in NumPy, once for every set of lengths, and kept on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.kept_plans import kept_plan_of_side, on_device
from crossret_kernels.ragged import Ragged

EMPTY = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TilePlan:
    """Items of one side in tiles of `size` slots; every table is int32.

    Attributes:
        size: slots of a tile.
        segments: places for items in a tile, a power of two.
        rows: (tiles, size), which row of the side stands in a slot, counted through all items' rows, padding included;
            an empty slot repeats the first row of its tile, so that what it loads exists.
        owners: (tiles, size), the place among the tile's items of the one whose row it is; −1 where empty.
        items: (tiles, segments), the items of a tile; −1 where there is none.
        lengths: (tiles, segments), their rows; 0 where there is none.
    """

    size: int
    segments: int
    rows: Tensor
    owners: Tensor
    items: Tensor
    lengths: Tensor

    @property
    def tiles(self) -> int:
        return self.rows.size(0)


@dataclass(frozen=True)
class ItemTable:
    """Where each item of a side lies, (items,) int32 on the device, and the longest of them."""

    first_rows: Tensor
    lengths: Tensor
    longest: int


def pack(lengths: Ints, size: int, segments: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """First-fit decreasing: the tiles that it makes, as (how many alike, [(length, how many items of it)]).

    A tile has room for `size` rows and `segments` items. Filling tile after tile with the longest item that still fits
    puts every item where first-fit decreasing does. Tiles filled alike are made at once, so that the work grows with
    the number of different lengths, not of items.

    Raises:
        ValueError: an item has more than `size` rows.
    """
    kinds, counts = np.unique(lengths, return_counts=True)
    if kinds.size and kinds[-1] > size:
        raise ValueError(f"an item of {kinds[-1]} rows does not fit a tile of {size}")
    left = dict(zip(kinds.tolist()[::-1], counts.tolist()[::-1], strict=True))
    tiles: list[tuple[int, list[tuple[int, int]]]] = []
    while left:
        room, places, contents = size, segments, []
        for length, count in left.items():
            uses = min(room // length, places, count)
            if uses:
                contents.append((length, uses))
                room -= uses * length
                places -= uses
        alike = min(left[length] // uses for length, uses in contents)
        tiles.append((alike, contents))
        for length, uses in contents:
            left[length] -= alike * uses
            if not left[length]:
                del left[length]
    return tiles


def fill_of(lengths: Ints, size: int, segments: int) -> float:
    """Which part of the slots of tiles of this size the items take."""
    tiles = sum(alike for alike, _ in pack(lengths, size, segments))
    return float(lengths.sum()) / (tiles * size) if tiles else 1.0


def plan_tiles(lengths: Ints, first_rows: Ints, size: int, segments: int, device: torch.device) -> TilePlan:
    """Packs items of these lengths, of which each begins at its row, into tiles on the device.

    Raises:
        ValueError: an item has more than `size` rows.
    """
    kinds = pack(lengths, size, segments)
    n_tiles = sum(alike for alike, _ in kinds)
    rows = np.zeros((n_tiles, size), np.int32)
    owners = np.full((n_tiles, size), EMPTY, np.int32)
    items = np.full((n_tiles, segments), EMPTY, np.int32)
    rows_of_items = np.zeros((n_tiles, segments), np.int32)
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    taken = {
        int(length): int(start) for length, start in zip(*np.unique(-ordered, return_index=True), strict=True)
    }  # by −length: where the next item of that length stands in `order`
    tile = 0
    for alike, contents in kinds:
        slot = place = 0
        block = slice(tile, tile + alike)
        for length, uses in contents:
            start = taken[-length]
            taken[-length] = start + alike * uses
            chosen = order[start : start + alike * uses].reshape(alike, uses)
            items[block, place : place + uses] = chosen
            rows_of_items[block, place : place + uses] = length
            slots = slice(slot, slot + uses * length)
            rows[block, slots] = (first_rows[chosen][:, :, None] + np.arange(length)).reshape(alike, -1)
            owners[block, slots] = np.repeat(np.arange(place, place + uses), length)
            slot += uses * length
            place += uses
        rows[block, slot:] = rows[block, :1]
        tile += alike
    return TilePlan(size, segments, *on_device(device, rows, owners, items, rows_of_items))


def lengths_of(side: Ragged) -> Ints:
    """Rows of every item, on the host: waits for the device where the caller keeps them there.

    Checked here too, once for every plan: inside torch.compile nothing else looks at them, and kernels read by them.

    Raises:
        ValueError: an item is empty, or has rows that are not there.
    """
    lengths: Ints = side.lengths.cpu().numpy()
    if side.offsets is not None:
        ends = side.offsets[:: max(1, len(side))].tolist() if len(side) else [0, 0]
        if ends != [0, side.values.size(0)]:
            raise ValueError(f"offsets reach from {ends[0]} to {ends[-1]}, but there are {side.values.size(0)} rows")
    most = side.values.size(-2)
    wrong = np.flatnonzero((lengths < 1) | (lengths > most))
    if wrong.size:
        raise ValueError(f"item {wrong[0]} has length {lengths[wrong[0]]}, it must lie in 1..{most}")
    return lengths


def first_rows_of(side: Ragged) -> Ints:
    """The row that every item begins with, counted through all items' rows, padding included; on the host."""
    if side.offsets is not None:
        return side.offsets[:-1].cpu().numpy()
    return np.arange(len(side), dtype=np.int64) * side.values.size(1)


def tiles_of(side: Ragged, size: int, segments: int) -> TilePlan:
    """The side's plan in tiles of `size` slots for `segments` items, made at the first call with its lengths."""

    def make() -> TilePlan:
        return plan_tiles(lengths_of(side), first_rows_of(side), size, segments, side.values.device)

    return kept_plan_of_side(TilePlan, (size, segments), side, make)


def items_of(side: Ragged) -> ItemTable:
    """Where the side's items lie, made at the first call with its lengths."""

    def make() -> ItemTable:
        lengths = lengths_of(side)
        first_rows, rows = on_device(side.values.device, first_rows_of(side), lengths)
        return ItemTable(first_rows, rows, int(lengths.max(initial=1)))

    return kept_plan_of_side(ItemTable, (), side, make)
