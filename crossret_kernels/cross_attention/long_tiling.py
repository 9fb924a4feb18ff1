"""Which tiles attention of items of any length takes: of the side's rows, and the blocks that a core walks them in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.tiling import Tiling, large_fit
from crossret_kernels.kept_plans import kept_plan
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import fill_of, items_of, lengths_of
from crossret_kernels.triton_launch import precisions

BLOCK = 128  # rows and columns of a block at most
SHORT_BLOCK = 64  # of columns, where operands lie in registers or the core's memory is small
STEP = 32  # rows of a step over weights
WIDTH = 64  # features of attended vectors at a time
ITEMS = 16  # places for items in a tile
MOST_CELLS = 2**31 - 1  # of a tile: they are counted in int32
WELL_FILLED = 0.9  # of what the best filled tiles are filled: then smaller ones are taken


@dataclass(frozen=True)
class LongTiling(Tiling):
    """Tiles of contexts by tiles of queries in blocks of M by N, D in steps of K; and how Triton runs it.

    Attributes:
        rows, columns: slots of a tile of contexts and of queries.
        gram_columns: of the Gram matrices' rows.
        items: places for items in a tile.
    """

    rows: int
    columns: int
    gram_columns: int
    items: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns


def long_tiling(contexts: Ragged, queries: Ragged, whole: bool, most_rows: int, most_columns: int) -> LongTiling:
    """The tiles for these sides, of several items of at most so many slots.

    `whole` is for listed pairs, whose items have a tile each.

    Raises:
        UnsupportedByBackend: the longest items have more pairs of rows than can be counted.
    """
    dtype, device = contexts.values.dtype, contexts.values.device
    ieee = precisions(dtype)[0] == "ieee"
    m = n = BLOCK
    if ieee or not large_fit(device):
        n = min(n, SHORT_BLOCK)
    longest = [items_of(side).longest for side in (contexts, queries)]
    if whole:
        m, n = (min(block, max(16, 1 << (rows - 1).bit_length())) for block, rows in zip((m, n), longest, strict=True))
    rows = _size(contexts, m, 0 if whole else most_rows)
    columns = _size(queries, n, 0 if whole else most_columns)
    if rows * columns > MOST_CELLS:
        raise UnsupportedByBackend(
            f"backend 'triton' cannot serve this call: items of {longest[0]} and {longest[1]} rows take a tile of "
            f"{rows} by {columns}, of which it counts up to {MOST_CELLS} cells"
        )
    k = 16 if ieee else 32 if dtype == torch.float32 else 64
    items, warps = 1 if whole else ITEMS, 8 if m * n > 64 * 64 else 4
    return LongTiling(m, n, k, warps, 3, rows, columns, _rounded(longest[0], 16), items)


def _size(side: Ragged, block: int, most: int) -> int:
    """Slots of a tile, of whole blocks: few, but at least the longest item's rows and nearly as well filled as can be.

    At most so many, or the longest item's.
    """
    least = _rounded(items_of(side).longest, block)

    def make() -> int:
        lengths = lengths_of(side)
        fills = {size: fill_of(lengths, size, ITEMS) for size in range(least, max(least, most) + 1, block)}
        return next(size for size, fill in fills.items() if fill >= WELL_FILLED * max(fills.values()))

    return least if least >= most else kept_plan(int, ("slots", block, most), side, make)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
