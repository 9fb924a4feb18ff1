"""Tables that tell Sum-Max's kernels for GPUs whose row stands where, made in NumPy of a side's lengths.

Rows are counted through all items' rows as features hold them, padding included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger[Any]]

EMPTY = -1
PROCESSORS = 256  # programs that run at a time on a large device
GROUP_COST = 2  # steps that take what a group costs besides its steps


class Layout(NamedTuple):
    """Where a side's items lie: first rows and lengths (items,)."""

    firsts: Ints
    lengths: Ints


def pack(lengths: Ints, size: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """First-fit decreasing of items into tiles of `size` rows, as (tiles alike, [(length, how many items of it)]).

    Filling tile after tile with the longest item that still fits puts every item where first-fit decreasing does. Tiles
    filled alike are made at once, so that the work grows with the number of different lengths, not of items.
    """
    kinds, counts = np.unique(lengths, return_counts=True)
    left = dict(zip(kinds.tolist()[::-1], counts.tolist()[::-1], strict=True))
    tiles: list[tuple[int, list[tuple[int, int]]]] = []
    while left:
        room, contents = size, []
        for length, count in left.items():
            uses = min(room // length, count)
            if uses:
                contents.append((length, uses))
                room -= uses * length
        alike = min(left[length] // uses for length, uses in contents)
        tiles.append((alike, contents))
        for length, uses in contents:
            left[length] -= alike * uses
            if not left[length]:
                del left[length]
    return tiles


def fill_of(lengths: Ints, size: int) -> float:
    """Which part of the rows of tiles of this size the items take."""
    return float(lengths.sum()) / (size * sum(alike for alike, _ in pack(lengths, size)))


def tiles_of(side: Layout, size: int) -> tuple[Ints, Ints, Ints]:
    """Whole items in tiles of `size` rows, none longer than that: (rows, owners, items), each (tiles, size).

    Which row stands in a slot, the tile's first where none does; the place among the tile's items of its owner, −1
    where none does; and the items, −1 behind the last.
    """
    kinds = pack(side.lengths, size)
    n_tiles = sum(alike for alike, _ in kinds)
    rows = np.zeros((n_tiles, size), np.int32)
    owners, items = np.full((2, n_tiles, size), EMPTY, np.int32)
    order = np.argsort(-side.lengths, kind="stable")
    starts = np.unique(-side.lengths[order], return_index=True)
    taken = dict(zip(*(column.tolist() for column in starts), strict=True))  # by −length: the next item in `order`
    tile = 0
    for alike, contents in kinds:
        slot = place = 0
        block = slice(tile, tile + alike)
        for length, uses in contents:
            start = taken[-length]
            taken[-length] += alike * uses
            chosen = order[start : start + alike * uses].reshape(alike, uses)
            slots = slice(slot, slot + uses * length)
            items[block, place : place + uses] = chosen
            rows[block, slots] = (side.firsts[chosen][:, :, None] + np.arange(length)).reshape(alike, -1)
            owners[block, slots] = np.repeat(np.arange(place, place + uses), length)
            slot += uses * length
            place += uses
        rows[block, slot:] = rows[block, :1]
        tile += alike
    return rows, owners, items


def by_length(lengths: Ints, window: int) -> Ints:
    """(windows, window): of so many items at a time all, the longest first; −1 behind the last."""
    windows = -(-len(lengths) // window)
    order = np.full(windows * window, EMPTY)
    order[: len(lengths)] = np.lexsort((-lengths, np.arange(len(lengths)) // window))
    return order.reshape(windows, window)


def best_abreast(ordered: Ints, columns: int, depth: int, n_tiles: int) -> int:
    """How many items a group takes: many leave few columns without a row, few leave more programs.

    Args:
        ordered: (windows, window) lengths, the longest first.
        columns: of a tile.
        depth: rows that pass through a column in a step.
        n_tiles: how often every group is walked over.
    """

    def cost(abreast: int) -> float:
        steps = -(-ordered[:, ::abreast] * abreast // (depth * columns))
        return float((steps + GROUP_COST).sum() * n_tiles / PROCESSORS + steps.max(initial=0))

    return min((1 << bit for bit in range(columns.bit_length())), key=cost)


def groups_of(side: Layout, columns: int, depth: int, window: int, n_tiles: int) -> tuple[int, Ints]:
    """Items in groups that a kernel walks over side by side, as (log₂ of how many, their table).

    Of a tile's columns every item of a group has an equal share, and so many of its rows pass at a time. Items of one
    group are of like lengths: a group takes as long as its longest. The arguments are `best_abreast`'s.

    The table (windows, groups, abreast, 3): an item's first row, its length and which it is, the longest first; −1
    where there is none: the rows are then another's.
    """
    order = by_length(side.lengths, window)
    abreast = best_abreast(np.where(order == EMPTY, 0, side.lengths[order]), columns, depth, n_tiles)
    padded = np.full((len(order), -(-window // abreast) * abreast), EMPTY)
    padded[:, :window] = order
    slots = padded.reshape(len(order), -1, abreast)
    readable = np.where(slots == EMPTY, np.maximum(slots[:, :, :1], 0), slots)
    return abreast.bit_length() - 1, np.stack([side.firsts[readable], side.lengths[readable], slots], -1)


def blocks_of(firsts: Ints, counts: Ints, size: int) -> tuple[Ints, Ints]:
    """Items cut into blocks of at most `size` rows: (their table (blocks, 4), borders (items + 1,)).

    A block's first row; rows of its item from it on; its item; and the place of its first row in that. Item k has
    blocks borders[k] to borders[k + 1], none if it is empty.
    """
    blocks = -(-counts // size)
    borders = np.concatenate([[0], blocks.cumsum()])
    items = np.repeat(np.arange(len(counts)), blocks)
    starts = (np.arange(borders[-1]) - borders[items]) * size
    return np.stack([firsts[items] + starts, counts[items] - starts, items, starts], 1), borders


def valid_rows(side: Layout) -> tuple[Ints, Ints, Ints]:
    """Rows without padding, numbered through: (which row each is, whose, the number of each item's first)."""
    items = np.repeat(np.arange(len(side.lengths)), side.lengths)
    starts = side.lengths.cumsum() - side.lengths
    return side.firsts[items] + np.arange(len(items)) - starts[items], items, starts
