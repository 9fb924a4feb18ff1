"""Runs of a call: parts of both sides whose similarities and packed rows fit a bounded workspace; their products.

A call that fits one part, padding included, is cut up by shapes alone: each item has a slot of the maximal length, and
kernels read lengths on the device. Larger calls are cut up by lengths on the host, and rows follow one another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.triton.call import (
    PITCH,
    AttentionCall,
    AttentionSpec,
    Numbers,
    PackedPart,
    memory,
)
from crossret_kernels.cross_attention.triton.packing import TOGETHER, Packed, rounded
from crossret_kernels.gpu.planning import cut, most_of_parts, on_device
from crossret_kernels.gpu.triton_launch import encoded
from crossret_kernels.gpu.tuning import Attention

MOST_NUMBERS = 2**30 - 2  # maximal numbers of a tensor of the workspace: kernels count them in int32, encoded

Ints = NDArray[np.int64]


class RunSizes(NamedTuple):
    """Sizes of a run, encoded.

    Attributes:
        n_contexts, n_queries: items.
        statistics_pitch: items of queries that a row of contexts meets; 1 in listed pairs.
        context_rows: rows of contexts.
        pitch: of S, in units of 16.
        plane: of statistics.
        kept_pitch, kept_plane: strides of the values kept of each item of contexts and row of queries.
        cells: of S.
        gram_blocks: blocks along a side of a Gram matrix.
        first_tile: in the plan.
        tile_items: items of queries in a tile where they have slots; else 0.
        contexts_per_program: items of contexts that a program attends to.
        pieces: tiles of an item of queries that has a slot.
        query_slots, context_slots: rows of a slot; 0 where rows follow one another.
    """

    n_contexts: int
    n_queries: int
    statistics_pitch: int
    context_rows: int
    pitch: int
    plane: int
    kept_pitch: int
    kept_plane: int
    cells: int
    gram_blocks: int
    first_tile: int
    tile_items: int
    contexts_per_program: int
    pieces: int
    query_slots: int
    context_slots: int


class ScoreStrides(NamedTuple):
    """First items of a run and strides of its scores among all scores; a listed pair counts as an item of contexts."""

    first_context: int
    first_query: int
    context: int
    query: int


class RunInputs(NamedTuple):
    """Tensors and sizes of a `Run` as kernels take them."""

    S: Tensor
    tiles: Tensor
    contexts: Packed
    queries: Packed
    grams: Tensor
    statistics: Tensor
    kept: Tensor
    sizes: RunSizes
    numbers: Numbers


class LengthPlan:
    """Tables made of both sides' lengths, for a call in several parts.

    Attributes:
        rows: first row of every item among all of its side, (items + 1,), of contexts and of queries.
        longest: rows of the longest item of either side.
        tile_rows, tile_items: first rows and items of the tiles of queries, and the ends of the last.
        tiles: (tiles + 1, 2) int32 on the device: these two.
        starts: `rows` on the device, int32.
    """

    def __init__(self, call: AttentionCall) -> None:
        spec, counts = call.spec, [side.known_counts() for side in call.sides]
        self.rows = [
            np.concatenate([[0], lengths.cumsum()]) for lengths in (rounded(counts[0], TOGETHER.value), counts[1])
        ]
        self.longest = [int(lengths.max()) for lengths in counts]
        self.tile_rows, self.tile_items = tiles_of(counts[1], self.rows[1], spec.kind.N, spec.kind.G, spec.kind.LONG)
        tiles = np.stack([self.tile_rows, self.tile_items], 1)
        self.tiles, *self.starts = on_device(spec.device, tiles, *self.rows)
        self.spec, self.most = spec, [side.slots for side in call.sides]

    def parts(self, gradients: bool) -> tuple[list[PackedPart], list[PackedPart]]:
        """Parts of contexts and of queries that fit the workspace, with similarities' gradients where asked."""
        spec, (contexts, queries) = self.spec, self.rows
        (n_contexts, n_queries), longest = (len(rows) - 1 for rows in self.rows), self.longest
        most_cells = Attention.CELL_BYTES // (8 if gradients else 4)
        if spec.kind.LONG:  # statistics of each item of queries and sums of each tile count, too
            most_cells = most_cells * queries[-1] // (queries[-1] + 2 * n_queries + len(self.tile_rows))
        most_rows = max(1, Attention.ROW_BYTES // (4 * spec.dim))
        weights = contexts[-1] + spec.planes * n_contexts
        most_contexts, most_queries = most_of_parts((weights, queries[-1]), longest[1], most_rows, int(most_cells))
        most_items = max(1, Attention.GRAM_BYTES // (4 * gram_pitch_of(longest[0], spec) ** 2))
        bounds = cut((contexts + spec.planes * np.arange(n_contexts + 1), most_contexts), most_items=most_items)
        context_parts = [self._part(0, *ends) for ends in pairwise(bounds)]
        if spec.kind.LONG:  # pieces of an item stay together
            tiles = [bisect_left(self.tile_items, item) for item in cut((queries, most_queries))]
        else:
            tiles = cut((self.tile_rows, most_queries))
        query_parts = [
            self._part(1, int(self.tile_items[first]), int(self.tile_items[last]), (first, last - first))
            for first, last in pairwise(tiles)
        ]
        return context_parts, query_parts

    def _part(self, side: int, first: int, last: int, tiles: tuple[int, int] = (0, 0)) -> PackedPart:
        n_rows = int(self.rows[side][last] - self.rows[side][first])
        return PackedPart(self.spec, side, first, last - first, n_rows, self.longest[side], 0, self.most[side], tiles)


def tiles_of(counts: Ints, rows: Ints, size: int, most: int, long: bool) -> tuple[Ints, Ints]:
    """First rows and first items of tiles of at most `size` rows and `most` whole items, and the ends of the last.

    Items that are `long` may exceed a tile: each tile then holds a piece of one item.
    """
    if long:
        pieces = np.maximum(-(-counts // size), 1)
        owners = np.repeat(np.arange(len(pieces)), pieces)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        return np.append(rows[owners] + within * size, rows[-1]), np.append(owners, len(pieces))
    items = np.asarray(cut((rows, size), most_items=most))
    return rows[items], items


class Layout:
    """Sizes of a run: parts of contexts and queries, or of listed pairs, without memory.

    Attributes:
        parts: of contexts and queries.
        n_tiles: tiles of queries.
        pieces, norm_sums: columns and size of the sums that long queries' tiles leave.
        sizes: of the run, encoded.
        workspace: sizes of the tensors of `Run`.
        saved: sizes of packed contexts, packed queries and the workspace, in units of four bytes.
        shape, strides: of the products in S, (rows of queries, rows of contexts), of listed pairs (pairs, slots,
            slots).
        gram_grid, statistics_grid, grid: a program for each block of a Gram matrix; block of rows of contexts and
            item of queries; tile of queries and some items of contexts.
        warps: of `grid`.
    """

    def __init__(self, contexts: PackedPart, queries: PackedPart) -> None:
        spec, kind, slots = contexts.spec, contexts.spec.kind, (contexts.slots, queries.slots)
        self.parts, listed = (contexts, queries), kind.LISTED
        tile_items, pieces = 0, 1
        first_tile, self.n_tiles = queries.tiles
        if slots[1]:
            pieces = -(-slots[1] // kind.N)
            tile_items = 1 if listed or pieces > 1 else min(kind.N // slots[1], kind.G)
            self.n_tiles = -(-queries.n_items // tile_items) * pieces
        rows, columns = contexts.n_rows, queries.n_rows
        pitch = -(-(slots[0] if listed else rows) // PITCH)
        gram_pitch = gram_pitch_of(contexts.longest, spec)
        contexts_per_program = max(
            1, min(Attention.CONTEXTS_PER_PROGRAM, contexts.n_items * self.n_tiles // Attention.PROGRAMS)
        )
        met_queries, met_contexts = (1, 1) if listed else (queries.n_items, contexts.n_items)
        plane, kept_plane = rounded(rows * met_queries, 4) if kind.LONG else 0, rounded(columns * met_contexts, 4)
        row = pitch * PITCH
        sizes = (
            contexts.n_items, queries.n_items, met_queries, rows, pitch, plane, 0 if listed else columns, kept_plane,
            columns * row, gram_pitch // kind.C, first_tile, tile_items, contexts_per_program, pieces, slots[1],
            slots[0],
        )  # fmt: skip
        self.sizes = RunSizes(*map(encoded, sizes))
        self.workspace = [
            contexts.n_items * gram_pitch**2,
            spec.planes * kept_plane,
            columns * row + kind.C,
            2 * plane or 16,
        ]
        self.saved = [*contexts.workspace, *queries.workspace, *self.workspace]
        self.shape = (contexts.n_items, slots[1], slots[0]) if listed else (columns, rows)
        self.strides = (slots[1] * row, row, 1) if listed else (row, 1)
        self.pieces = pieces if listed else self.n_tiles
        self.norm_sums = rows * self.pieces
        if max(*self.workspace[1:], self.norm_sums) >= MOST_NUMBERS:
            raise UnsupportedByBackend(
                "backend 'triton' cannot serve this call: similarities of an item of regions and one of words, of up "
                f"to {contexts.longest} and {queries.longest} rows, take more than its workspace can number"
            )
        blocks = gram_pitch // kind.C
        self.gram_grid = contexts.n_items, blocks**2, 1
        self.statistics_grid = queries.n_items, -(-(slots[0] if listed else rows) // kind.C), 1
        self.grid = self.n_tiles, 1 if listed else -(-contexts.n_items // contexts_per_program), 1
        self.warps = Attention.warps(kind.N)


@lru_cache(256)
def single_part(
    spec: AttentionSpec, n_contexts: int, longest: int, n_queries: int, longest_query: int
) -> Layout | None:
    """Layout of all pairs in one part, of so many items and slots of each side; None where it does not fit."""
    contexts = PackedPart.slotted(spec, 0, 0, n_contexts, longest)
    queries = PackedPart.slotted(spec, 1, 0, n_queries, longest_query)
    fits = 8 * (contexts.n_rows + spec.planes * n_contexts) * queries.n_rows <= Attention.CELL_BYTES
    fits = fits and 4 * max(contexts.n_rows, queries.n_rows) * spec.dim <= Attention.ROW_BYTES
    fits = fits and 4 * n_contexts * gram_pitch_of(longest, spec) ** 2 <= Attention.GRAM_BYTES
    return Layout(contexts, queries) if fits else None


@lru_cache(256)
def listed(spec: AttentionSpec, first: int, n_pairs: int, longest: int, longest_query: int) -> Layout:
    """Layout of `n_pairs` listed pairs from `first` on."""
    return Layout(*(PackedPart.slotted(spec, i, first, n_pairs, x) for i, x in enumerate((longest, longest_query))))


@lru_cache(256)
def score_strides(first: tuple[int, int], strides: tuple[int, ...], spec: AttentionSpec) -> ScoreStrides:
    """Encoded first items of a run and strides of its scores."""
    along = (strides[0], 0) if spec.kind.LISTED else strides[:: spec.order]
    return ScoreStrides(*map(encoded, (*first, *along)))


class Run:
    """A run with its memory.

    Attributes:
        call, layout: of the run.
        computed: True where relevances, and what gradients need, are there already.
        contexts, queries: packed rows.
        inputs: of kernels: grams (items, pitch, pitch) of the contexts; planes of values kept of each item of contexts
            and row of queries; S, products of all rows (rows of queries, pitch) with zeros behind the last; statistics
            of long queries (2, rows of contexts, items).
    """

    def __init__(
        self, call: AttentionCall, layout: Layout, sides: Sequence[Packed], tiles: Tensor | None = None,
        workspace: Sequence[Tensor] = (), computed: bool = False,
    ) -> None:  # fmt: skip
        """`workspace`: memory of the layout's sizes, or none yet."""
        self.call, self.layout, self.computed = call, layout, computed
        self.contexts, self.queries = contexts, queries = sides
        grams, kept, S, statistics = workspace or memory(call.spec.device, layout.workspace)
        tiles = queries.items if tiles is None else tiles
        self.inputs = RunInputs(S, tiles, contexts, queries, grams, statistics, kept, layout.sizes, call.spec.numbers)

    def score_strides(self, scores: Tensor) -> ScoreStrides:
        first, second = self.layout.parts
        return score_strides((first.first, second.first), scores.stride(), self.call.spec)

    def matrix(self, cells: Tensor) -> Tensor:
        """Cells of S as a matrix (rows of queries, rows of contexts), of listed pairs a batch (pairs, slots, slots)."""
        return cells.as_strided(self.layout.shape, self.layout.strides)

    def rows_of(self, side: Packed) -> Tensor:
        """Packed rows (rows, D), of listed pairs (pairs, slots, D)."""
        rows = side.rows
        return rows if self.call.pairs is None else rows.view(self.layout.parts[0].n_items, -1, rows.size(1))

    def multiply(self) -> None:
        """Similarities S = Q Cᵀ."""
        multiply(self.rows_of(self.queries), self.rows_of(self.contexts).mT, self.matrix(self.inputs.S))


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Stores the float32 product of two matrices, or of batches of them."""
    product = torch.mm if left.dim() == 2 else torch.bmm
    if left.is_cpu:  # Triton's interpreter: the CPU has no product of halves with float32 sums
        product(left.float(), right.float(), out=out)
    elif left.dtype == torch.float32:
        product(left, right, out=out)
    else:
        product(left, right, torch.float32, out=out)


def gram_pitch_of(longest: int, spec: AttentionSpec) -> int:
    """Rows of a Gram matrix: whole blocks, so that loads need no masks."""
    return -(-max(longest, 1) // spec.kind.C) * spec.kind.C


def single_part_of(call: AttentionCall) -> Layout | None:
    """`single_part` of a call."""
    contexts, queries = call.sides
    return single_part(call.spec, contexts.n_items, contexts.slots, queries.n_items, queries.slots)


def run_in(saved: Tensor, call: AttentionCall, layout: Layout, computed: bool) -> Run:
    """The run of a whole call in `saved` memory, packed here or computed by the forward pass."""
    places = saved.split_with_sizes(layout.saved)
    if computed:
        contexts, queries = layout.parts
        sides = [contexts.packed_in(*places[:5]), queries.packed_in(*places[5:10])]
    else:
        sides = call.pack(*layout.parts, workspace=places[:10])
    return Run(call, layout, sides, None, places[10:], computed)


def planned_runs(
    call: AttentionCall, plan: LengthPlan, parts: Sequence[Sequence[PackedPart]], outer: int = 0
) -> Iterator[Run]:
    """Runs of all pairs of parts: each part of the outer side is packed once, others once for each of these."""
    packed: list[Packed | None] = [None, None]
    inner = 1 - outer
    for outer_part in parts[outer]:
        (packed[outer],) = call.pack(outer_part, starts=plan.starts)
        for inner_part in parts[inner]:
            if packed[inner] is None or len(parts[inner]) > 1:
                packed[inner] = None  # frees the memory that the next part takes
                (packed[inner],) = call.pack(inner_part, starts=plan.starts)
            layout = Layout(inner_part, outer_part) if outer else Layout(outer_part, inner_part)
            yield Run(call, layout, [side for side in packed if side is not None], plan.tiles)


def listed_runs(call: AttentionCall, most_bytes: int) -> Iterator[Run]:
    """Runs of listed pairs of at most `most_bytes`; an item is packed once for each of its pairs."""
    assert call.pairs is not None
    spec, n_pairs = call.spec, call.pairs.size(0)
    rows = [side.slots for side in call.sides]
    cells = 2 * rows[1] * rounded(rows[0], PITCH) + gram_pitch_of(rows[0], spec) ** 2 + spec.planes * rows[1]
    pair_bytes = (rounded(rows[0], PITCH) + rows[1]) * spec.dim * spec.dtype.itemsize + 4 * cells
    chunk = max(1, most_bytes // pair_bytes)
    for first in range(0, n_pairs, chunk):
        layout = listed(spec, first, min(chunk, n_pairs - first), rows[0], rows[1])
        yield Run(call, layout, call.pack(*layout.parts))  # no reference stays, so that the next run takes its memory
