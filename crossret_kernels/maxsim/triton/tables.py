"""Tables that tell Sum-Max's kernels for GPUs which queries share a tile, and which contexts a group, by lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger[Any]]

EMPTY = -1
PROCESSORS = 256  # programs that run at a time on a large device
GROUP_COST = 2  # steps that take what a group costs besides its steps


def pack(lengths: Ints, size: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """First-fit decreasing of items into tiles of `size` rows, as (tiles repeats, [(length, how many items of it)]).

    Filling tile after tile with the longest item that still fits puts every item where first-fit decreasing does. Tiles
    filled repeats are made at once, so that the work grows with the number of different lengths, not of items. Items
    without rows have no place.
    """
    kinds, counts = np.unique(lengths[lengths > 0], return_counts=True)
    remaining = dict(zip(kinds.tolist()[::-1], counts.tolist()[::-1], strict=True))
    tiles: list[tuple[int, list[tuple[int, int]]]] = []
    while remaining:
        room, contents = size, []
        for length, count in remaining.items():
            uses = min(room // length, count)
            if uses:
                contents.append((length, uses))
                room -= uses * length
        repeats = min(remaining[length] // uses for length, uses in contents)
        tiles.append((repeats, contents))
        for length, uses in contents:
            remaining[length] -= repeats * uses
            if not remaining[length]:
                del remaining[length]
    return tiles


def tiles_of(lengths: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """Whole items in tiles of `size` rows, none longer than that: (places, owners, items), each (tiles, size).

    Of a slot, the place in its item of the row that stands there, 0 where none does; the place among the tile's items
    of its owner, −1 where none does; and the items, −1 behind the last.
    """
    kinds = pack(lengths, size)
    n_tiles = sum(repeats for repeats, _ in kinds)
    places = np.zeros((n_tiles, size), np.int32)
    owners, items = np.full((2, n_tiles, size), EMPTY, np.int32)
    order = np.argsort(-lengths, kind="stable")
    starts = np.unique(-lengths[order], return_index=True)
    next_items = dict(zip(*(column.tolist() for column in starts), strict=True))  # by −length: the next item in `order`
    tile = 0
    for repeats, contents in kinds:
        slot = place = 0
        block = slice(tile, tile + repeats)
        for length, uses in contents:
            start = next_items[-length]
            next_items[-length] += repeats * uses
            slots = slice(slot, slot + uses * length)
            items[block, place : place + uses] = order[start : start + repeats * uses].reshape(repeats, uses)
            places[block, slots] = np.tile(np.arange(length), uses)
            owners[block, slots] = np.repeat(np.arange(place, place + uses), length)
            slot += uses * length
            place += uses
        tile += repeats
    return places, owners, items


def best_group_bits(count: int, length: int, columns: int, depth: int, n_tiles: int) -> int:
    """log₂ of how many items a group takes: many leave few columns without a row, few leave more programs.

    Args:
        count, length: items of contexts, and rows that each has.
        columns: of a tile.
        depth: rows that pass through a column in a step.
        n_tiles: how often every group is walked over.
    """

    def cost(bits: int) -> float:
        steps = -(-(length << bits) // (depth * columns))
        return -(-count >> bits) * (steps + GROUP_COST) * n_tiles / PROCESSORS + steps

    return min(range(columns.bit_length()), key=cost)


def groups_of(lengths: Ints, bits: int, window: int) -> Ints:
    """(windows, groups, 1 << bits): items in groups that a kernel walks over side by side, `window` at a time.

    Of a tile's columns every item of a group has an equal share, and so many of its rows pass at a time: a group takes
    as long as its longest. So the longest of a window come first. −1 behind the last.
    """
    windows, group_size = -(-len(lengths) // window), 1 << bits
    order = np.full(windows * window, EMPTY)
    order[: len(lengths)] = np.lexsort((-lengths, np.arange(len(lengths)) // window))
    table = np.full((windows, -(-window // group_size) * group_size), EMPTY)
    table[:, :window] = order.reshape(windows, window)
    return table.reshape(windows, -1, group_size)
