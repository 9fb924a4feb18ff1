"""Runs of items, or of listed pairs, whose similarities and packed rows fit a bounded workspace; their products."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.triton.call import Call, Numbers, Packed, Part, Plan, aligned, kind_of
from crossret_kernels.gpu.planning import cut
from crossret_kernels.gpu.triton_launch import hidden
from crossret_kernels.gpu.tuning import Attention

PLANES = 5  # of values of every row of queries to an item of contexts, beside its similarities
PITCH = 16  # rows of S begin at multiples of it
MOST_NUMBERS = 2**30 - 2  # of a part of the workspace: kernels count them in int32, sizes hidden
FEATURES = tl.constexpr(Attention.FEATURES)


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


class Layout:
    """Some items of contexts against some tiles of queries, or some listed pairs: all of a run but its memory.

    Attributes:
        parts: of contexts and queries.
        n_contexts, n_queries, n_tiles: how many there are.
        pieces, pulls: columns of what long queries' tiles leave, and numbers of it.
        sizes: of the run, as kernels have them.
        room: numbers of each part of the workspace, as `Run` has them.
        shape, strides: of the products in S, (rows, columns), of listed pairs (pairs, slots, slots).
        kind, key: what its kernels are compiled for.
        of_grams, of_rows, of_statistics, grid: of kernels that have a program for every block of a Gram matrix, block
            of its rows, block of rows of contexts and item of queries, tile of queries and some items of contexts.
        warps: of the last.
    """

    def __init__(self, plan: Plan, own: tuple[int, int], tiles: tuple[int, int], dtype: torch.dtype) -> None:
        listed, slots = plan.form.listed, (plan.contexts.longest, plan.queries.longest)
        # Pieces of one item of queries are never parted.
        items = own if listed else (plan.tile_items[tiles[0]], plan.tile_items[tiles[1]])
        self.parts = contexts, queries = plan.kept(Part, 0, own, dtype), plan.kept(Part, 1, items, dtype)
        self.n_contexts, self.n_queries = n_contexts, n_queries = contexts.count, queries.count
        self.n_tiles = n_contexts * plan.pieces if listed else tiles[1] - tiles[0]
        rows, columns = contexts.n_rows, queries.n_rows
        pitch = -(-(slots[1] if listed else columns) // PITCH)
        gram_pitch = gram_pitch_of(plan)
        abreast = max(1, min(Attention.CONTEXTS_ABREAST, n_contexts * self.n_tiles // Attention.PROGRAMS))
        met_queries, met_contexts = (1, 1) if listed else (n_queries, n_contexts)
        plane, kept_plane = aligned(rows * met_queries) if plan.long else 0, aligned(columns * met_contexts)
        sizes = (
            n_contexts, met_queries, rows, pitch, plane, 0 if listed else columns, kept_plane, gram_pitch // plan.block,
            0 if listed else tiles[0], abreast, plan.pieces, slots[1], slots[0],
        )  # fmt: skip
        self.sizes = Sizes(*map(hidden, sizes))
        row = pitch * PITCH
        self.room = (
            rows * row, n_contexts * gram_pitch**2, 2 * plane or 16, PLANES * kept_plane,
            aligned(self.n_tiles * met_contexts),
        )  # fmt: skip
        self.shape = (n_contexts, *slots) if listed else (rows, columns)
        self.strides = (slots[0] * row, row, 1) if listed else (row, 1)
        self.pieces = plan.pieces if listed else self.n_tiles
        self.pulls = rows * self.pieces
        if max(self.room[0], *self.room[2:], self.pulls) >= MOST_NUMBERS:
            raise UnsupportedByBackend(
                "backend 'triton' cannot serve this call: similarities of an item of regions and one of words, of up "
                f"to {slots[0]} and {slots[1]} rows, take more than its workspace can number"
            )
        self.kind, self.key = kind_of(plan, dtype), (plan.form.key, dtype)
        blocks = gram_pitch // plan.block
        self.of_grams, self.of_rows = (n_contexts, blocks**2, 1), (n_contexts, blocks, plan.form.dim // FEATURES.value)
        self.of_statistics = n_queries, -(-(slots[0] if listed else rows) // plan.block), 1
        self.grid = self.n_tiles, 1 if listed else -(-n_contexts // abreast), 1
        self.warps = Attention.warps(plan.tile)


class Run:
    """A run with its memory.

    Attributes:
        call, layout: it belongs to, and is made by.
        contexts, queries: its packed rows.
        inputs: of its kernels. S has room for the products of all rows, (rows of contexts, pitch); grams for the
            contexts', (items, pitch, pitch); statistics for those of long queries, (2, rows of contexts, items); kept
            for planes of values of every item of contexts and row of queries; cancelled for whether
            attended vectors do, of every item of contexts and tile of queries.
    """

    def __init__(self, call: Call, layout: Layout, contexts: Packed, queries: Packed) -> None:
        self.call, self.layout, self.contexts, self.queries = call, layout, contexts, queries
        workspace = torch.empty(sum(layout.room), device=call.form.device)
        S, grams, statistics, kept, cancelled = torch.split_with_sizes(workspace, layout.room)
        tiles, numbers = call.plan.tiles, call.form.numbers
        self.inputs = Inputs(S, tiles, contexts, queries, grams, statistics, kept, cancelled, layout.sizes, numbers)

    def score_strides(self, scores: Tensor) -> ScoreStrides:
        first, strides = [part.first for part in self.layout.parts], scores.stride()
        if self.call.pairs is not None:
            return ScoreStrides(*map(hidden, (first[0], 0, 0, strides[0], 0)))
        return ScoreStrides(*map(hidden, (0, *first, *strides[:: self.call.form.order])))

    def matrix(self, cells: Tensor) -> Tensor:
        """Cells of S as (rows of contexts, rows of queries), of listed pairs (pairs, slots, slots)."""
        return cells.as_strided(self.layout.shape, self.layout.strides)

    def rows_of(self, side: Packed) -> Tensor:
        """Packed rows (rows, D), of listed pairs (pairs, slots, D)."""
        return side.rows if self.call.pairs is None else side.rows.view(self.layout.n_contexts, -1, side.rows.size(1))

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


def gram_pitch_of(plan: Plan) -> int:
    """Rows of a Gram matrix: whole blocks, which take no masks."""
    return -(-max(plan.contexts.longest, 1) // plan.block) * plan.block


def parts_of(plan: Plan, apart: bool) -> tuple[list[int], list[int]]:
    """Bounds of parts that fit, of contexts in items, of queries in tiles.

    `apart` says that gradients of similarities do not take their place.
    """
    contexts, queries = plan.contexts, plan.queries
    most_cells = Attention.CELL_BYTES // (8 if apart else 4)
    if plan.long:  # statistics of every item of queries, and sums of every tile
        most_cells = most_cells * queries.n_rows // (queries.n_rows + 2 * len(queries.lengths) + len(plan.tile_rows))
    most_rows = max(1, Attention.ROW_BYTES // (4 * plan.form.dim))
    weights = contexts.n_rows + PLANES * len(contexts.lengths)
    most_queries = max(1, min(queries.n_rows, most_rows, max(most_cells // max(weights, 1), int(most_cells**0.5))))
    most_contexts = max(1, min(most_rows, most_cells // max(most_queries, queries.longest)))  # no item is parted
    most_items = max(1, Attention.GRAM_BYTES // (4 * gram_pitch_of(plan) ** 2))
    if weights <= most_contexts and len(contexts.lengths) <= most_items:
        bounds = [0, len(contexts.lengths)]
    else:
        ends = contexts.starts + PLANES * np.arange(len(contexts.lengths) + 1)
        bounds = cut((ends, most_contexts), most_items=most_items)
    if queries.n_rows <= most_queries:
        return bounds, [0, len(plan.tile_rows) - 1]
    if not plan.long:
        return bounds, cut((plan.tile_rows, most_queries))
    items = cut((queries.starts, most_queries))  # whose pieces stay together
    return bounds, [bisect_left(plan.tile_items, item) for item in items]


def runs_of(call: Call) -> Iterator[Run]:
    """All runs of a call's forward pass, contexts packed once and queries once for each part of those."""
    plan, dtype = call.plan, call.form.dtype
    if call.pairs is not None:
        yield from listed_runs(call, dtype, Attention.LISTED_BYTES)
        return
    of_contexts, of_queries = plan.kept(parts_of, False)
    queries = None
    for own in pairwise(of_contexts):
        contexts = None
        for tiles in pairwise(of_queries):
            layout = plan.kept(Layout, own, tiles, dtype)
            contexts = contexts or call.pack(layout.parts[0])
            if queries is None or len(of_queries) > 2:
                queries = call.pack(layout.parts[1])
            yield Run(call, layout, contexts, queries)


def listed_runs(call: Call, dtype: torch.dtype, most_bytes: int) -> Iterator[Run]:
    """Listed pairs in runs of at most so many bytes; items that take part in several are packed for each."""
    assert call.pairs is not None
    plan, n_pairs = call.plan, call.pairs.size(0)
    rows = plan.contexts.longest, plan.queries.longest
    cells = 2 * rows[0] * -(-rows[1] // PITCH) * PITCH + gram_pitch_of(plan) ** 2 + PLANES * rows[1]
    of_pair = sum(rows) * plan.form.dim * dtype.itemsize + 4 * cells
    most = max(1, most_bytes // of_pair)
    for first in range(0, n_pairs, most):
        layout = plan.kept(Layout, (first, min(first + most, n_pairs)), (0, 0), dtype)
        yield Run(call, layout, *map(call.pack, layout.parts))  # held by nothing here: its memory is for the next
