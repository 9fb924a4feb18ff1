"""Runs of items, or of listed pairs, whose similarities and packed rows fit a bounded workspace; their products."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.cross_attention.triton.call import Call, Numbers, Packed, aligned
from crossret_kernels.triton_launch import all_hidden, hidden

CELL_BYTES = 96 * 2**20  # of similarities and what is kept beside them, their gradients included where apart
ROW_BYTES = 24 * 2**20  # of either side's packed rows, in float32
GRAM_BYTES = 24 * 2**20
LISTED_BYTES = 128 * 2**20  # of listed pairs' rows and similarities together
PLANES = 6  # of values of every row of queries to an item of contexts, beside its similarities
# Of a call too small to fill a GPU, whose similarities stay on the chip: some 240 tiles, two for each core of an H200.
# Counted, not yet measured.
FUSED_CELLS = 2**20
CONTEXTS_ABREAST = 8  # items of contexts that a program attends to, at most
PROGRAMS = 1024  # wanted of a launch, ahead of longer programs
PITCH = 16  # rows of S begin at multiples of it


class Sizes(NamedTuple):
    """Of a run; `hidden` as its kernels have them.

    Attributes:
        n_contexts: items.
        statistics_pitch: items of queries that a row of contexts meets, of a listed pair one.
        context_rows: rows of contexts.
        pitch: of S, in sixteens.
        plane: of statistics.
        kept_pitch, kept_plane: of values kept for every item of contexts and row of queries.
        gram_blocks: of a row of Gram matrices.
        first_tile: of the plan.
        abreast: items of contexts that a program attends to.
        pieces: tiles of a listed pair.
        query_slots, context_slots: rows of a listed pair's items.
    """

    n_contexts: int
    statistics_pitch: int
    context_rows: int
    pitch: int
    plane: int
    kept_pitch: int
    kept_plane: int
    gram_blocks: int
    first_tile: int
    abreast: int
    pieces: int
    query_slots: int
    context_slots: int


class ScoreStrides(NamedTuple):
    """Where a run's scores stand among all: of listed pairs from `first` on."""

    first: int
    first_context: int
    first_query: int
    context: int
    query: int


class Inputs(NamedTuple):
    """A run as kernels read it; see `Run`."""

    S: Tensor
    tiles: Tensor
    contexts: Packed
    queries: Packed
    grams: Tensor
    statistics: Tensor
    kept: Tensor
    cancelled: Tensor
    sizes: Sizes
    numbers: Numbers


class Run:
    """Some items of contexts against some tiles of queries, or some listed pairs, and the workspace for them.

    Attributes:
        call: it belongs to.
        first_context, first_query: items, among all of their side; of listed pairs the first pair.
        n_contexts, n_queries, n_tiles: how many there are.
        sizes: of the run.
        inputs: of its kernels. S has room for the products of all rows, (rows of contexts, pitch); grams for the
            contexts', (items, pitch, pitch); statistics for those of long queries, (2, rows of contexts, items); kept
            for planes of values of every item of contexts and row of queries; cancelled for whether
            attended vectors do, of every item of contexts and tile of queries.
        kind, key: what its kernels are compiled for.
        grid, warps: of kernels that have a program for every tile of queries.
    """

    def __init__(
        self, call: Call, contexts: Packed, queries: Packed, first: tuple[int, int], tiles: range, fused: bool = False
    ) -> None:
        n_contexts, n_queries = contexts.items.size(0), queries.items.size(0)
        rows, columns = contexts.rows.size(0), queries.rows.size(0)
        self.call, self.contexts, self.queries = call, contexts, queries
        self.first_context, self.first_query = first
        self.n_contexts, self.n_queries, self.n_tiles = n_contexts, n_queries, len(tiles)
        self.listed = call.pairs is not None
        pitch = -(-(call.plan.queries.longest if self.listed else columns) // PITCH)
        self.gram_blocks = gram_pitch_of(call) // call.plan.block
        abreast = max(1, min(CONTEXTS_ABREAST, n_contexts * len(tiles) // PROGRAMS))
        plane = aligned(rows * (1 if self.listed else n_queries)) if call.plan.long else 0
        sizes = Sizes(
            n_contexts, 1 if self.listed else n_queries, rows, pitch, plane, 0 if self.listed else columns,
            aligned(columns * (1 if self.listed else n_contexts)), self.gram_blocks, tiles.start, abreast,
            call.plan.pieces, call.plan.queries.longest, call.plan.contexts.longest,
        )  # fmt: skip
        self.sizes = sizes
        cells = 16 if fused else rows * pitch * PITCH
        statistics = 2 * sizes.plane if call.plan.long else 16
        met = aligned(len(tiles) * (1 if self.listed else n_contexts))
        parts = cells, n_contexts * gram_pitch_of(call) ** 2, statistics, PLANES * sizes.kept_plane, met
        S, grams, norms, kept, cancelled = torch.split_with_sizes(torch.empty(sum(parts), device=call.device), parts)
        own = all_hidden(sizes)
        self.inputs = Inputs(S, call.plan.tiles, contexts, queries, grams, norms, kept, cancelled, own, call.numbers)
        self.kind = call.kind_of(contexts.rows.dtype, fused)
        self.key = call.key, contexts.rows.dtype
        self.context_blocks = -(-(call.plan.contexts.longest if self.listed else rows) // call.plan.block)
        self.grid = len(tiles), 1 if self.listed else -(-n_contexts // abreast), 1
        self.warps = 8 if call.plan.tile > 64 else 4

    def score_strides(self, scores: Tensor) -> ScoreStrides:
        if self.listed:
            return ScoreStrides(*map(hidden, (self.first_context, 0, 0, scores.stride(0), 0)))
        column = self.call.context_column
        strides = scores.stride(column), scores.stride(1 - column)
        return ScoreStrides(*map(hidden, (0, self.first_context, self.first_query, *strides)))

    def matrix(self, cells: Tensor) -> Tensor:
        """Cells of S as (rows of contexts, rows of queries), of listed pairs (pairs, slots, slots)."""
        rows = cells.view(-1, self.sizes.pitch * PITCH)
        if self.listed:
            return rows.view(self.n_contexts, self.call.plan.contexts.longest, -1)[
                :, :, : self.call.plan.queries.longest
            ]
        return rows[:, : self.queries.rows.size(0)]

    def rows_of(self, side: Packed) -> Tensor:
        """Packed rows (rows, D), of listed pairs (pairs, slots, D)."""
        return side.rows.view(self.n_contexts, -1, self.call.dim) if self.listed else side.rows

    def multiply(self) -> None:
        """S = C Qᵀ."""
        multiply(self.rows_of(self.contexts), self.rows_of(self.queries).mT, self.matrix(self.inputs.S))


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The float32 product of two matrices, or of batches of them."""
    product = torch.mm if left.dim() == 2 else torch.bmm
    if left.is_cpu:  # Triton's interpreter is at work; there is no product of halves with sums in float32
        product(left.float(), right.float(), out=out)
    elif left.dtype == torch.float32:
        product(left, right, out=out)
    else:
        product(left, right, torch.float32, out=out)


def gram_pitch_of(call: Call) -> int:
    """Rows of a Gram matrix: whole blocks, which take no masks."""
    return -(-max(call.plan.contexts.longest, 1) // call.plan.block) * call.plan.block


class Parts(NamedTuple):
    """Bounds of parts: of contexts in items, of queries in tiles."""

    contexts: list[int]
    queries: list[int]


def parts_of(call: Call, apart: bool) -> Parts:
    """Both sides in parts that fit; `apart` says that gradients of similarities do not take their place."""
    plan, contexts, queries = call.plan, call.plan.contexts, call.plan.queries
    most_cells = CELL_BYTES // (8 if apart else 4)
    if plan.long:  # statistics of every item of queries, and sums of every tile
        most_cells = most_cells * queries.n_rows // (queries.n_rows + 2 * len(queries.lengths) + len(plan.tile_rows))
    most_rows = max(1, ROW_BYTES // (4 * call.dim))
    weights = contexts.n_rows + PLANES * len(contexts.lengths)
    most_queries = max(1, min(queries.n_rows, most_rows, max(most_cells // max(weights, 1), int(most_cells**0.5))))
    most_contexts = max(1, min(most_rows, most_cells // most_queries))
    most_items = max(1, GRAM_BYTES // (4 * gram_pitch_of(call) ** 2))
    if weights <= most_contexts and len(contexts.lengths) <= most_items:
        bounds = [0, len(contexts.lengths)]
    else:
        ends = contexts.starts + PLANES * np.arange(len(contexts.lengths) + 1)
        bounds = parted(ends.tolist(), most_contexts, most_items)
    if queries.n_rows <= most_queries:
        return Parts(bounds, [0, len(plan.tile_rows) - 1])
    if not call.plan.long:
        return Parts(bounds, parted(plan.tile_rows, most_queries, len(plan.tile_rows)))
    items = parted(queries.starts.tolist(), most_queries, len(queries.lengths))  # whose pieces stay together
    return Parts(bounds, [bisect_left(plan.tile_items, item) for item in items])


def parted(ends: list[int], most: int, most_items: int) -> list[int]:
    """Bounds of parts of successive items that end there: of so much, and so many items, at most, one at least."""
    bounds = [0]
    while bounds[-1] < len(ends) - 1:
        first = bounds[-1]
        last = bisect_right(ends, ends[first] + most) - 1
        bounds.append(min(max(last, first + 1), first + most_items, len(ends) - 1))
    return bounds


def runs_of(call: Call, fusable: bool = True) -> Iterator[Run]:
    """All runs of a call's forward pass, contexts packed once and queries once for each part of those."""
    if call.pairs is not None:
        yield from listed_runs(call, call.dtype, LISTED_BYTES)
        return
    parts = parts_of(call, apart=False)
    single = len(parts.contexts) == len(parts.queries) == 2
    cells = call.plan.contexts.n_rows * call.plan.queries.n_rows
    fused = fusable and single and cells <= FUSED_CELLS and not (call.plan.long or call.plan.wide)
    queries = None
    for own in pairwise(parts.contexts):
        contexts = pack_contexts(call, own, call.dtype)
        for tiles in pairwise(parts.queries):
            if queries is None or len(parts.queries) > 2:
                queries = pack_queries(call, tiles, call.dtype)
            yield dense_run(call, contexts, queries, own, tiles, fused)


def pack_contexts(call: Call, own: tuple[int, int], dtype: torch.dtype) -> Packed:
    """A part of the contexts' items."""
    starts = call.plan.contexts.starts
    return call.pack(True, own[0], own[1] - own[0], int(starts[own[1]] - starts[own[0]]), dtype)


def pack_queries(call: Call, tiles: tuple[int, int], dtype: torch.dtype) -> Packed:
    """The queries' items of a part of the tiles."""
    first, last = (call.plan.tile_items[tile] for tile in tiles)  # pieces of one item are never parted
    starts = call.plan.queries.starts
    return call.pack(False, first, last - first, int(starts[last] - starts[first]), dtype)


def dense_run(
    call: Call, contexts: Packed, queries: Packed, own: tuple[int, int], tiles: tuple[int, int], fused: bool = False
) -> Run:
    """The run of all pairs of these parts."""
    return Run(call, contexts, queries, (own[0], call.plan.tile_items[tiles[0]]), range(*tiles), fused)


def listed_runs(call: Call, dtype: torch.dtype, most_bytes: int) -> Iterator[Run]:
    """Listed pairs in runs of at most so many bytes; items that take part in several are packed for each."""
    assert call.pairs is not None
    rows = call.plan.contexts.longest, call.plan.queries.longest
    cells = rows[0] * -(-rows[1] // PITCH) * PITCH
    of_pair = sum(rows) * (call.dim * dtype.itemsize) + 4 * (2 * cells + gram_pitch_of(call) ** 2 + PLANES * rows[1])
    most = max(1, most_bytes // of_pair)
    for first in range(0, call.pairs.size(0), most):
        count = min(most, call.pairs.size(0) - first)
        yield Run(  # held by nothing here, so that its memory is free for the next
            call, call.pack(True, first, count, count * rows[0], dtype),
            call.pack(False, first, count, count * rows[1], dtype),
            (first, first), range(count * call.plan.pieces),
        )  # fmt: skip
