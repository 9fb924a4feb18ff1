"""Sum-Max in Triton: the best context of every query, SCAN Eqs. 9 and 10, without a matrix of similarities.

A tile of queries stays while groups of items of contexts pass it (`group_items`). Every item of a group has
columns of its own, so that maxima of cells are maxima of items, whatever their lengths: what a query has found of an
item in one column is brought together with the item's other columns at the group's end alone. Rows behind an item's end
repeat its last one, which changes no maximum. Whole items of queries share a tile (`best_of_tiles`), or one item that
may be longer than a tile passes through it in pieces (`best_of_items`). To soft maxima such rows add nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import encoded_sizes, launch
from crossret_kernels.gpu.triton_tiles import decoded, product
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.triton.call import KernelSide, MaxSimCall, MaxSimPlan, SideSizes
from crossret_kernels.maxsim.triton.found import Found, Strides, soft_found
from crossret_kernels.maxsim.triton.maxima import (
    BEYOND,
    LN_2,
    add_exponentials,
    best_of_columns,
    best_of_depth,
    better,
    disordered,
    ordered,
)
from crossret_kernels.maxsim.triton.rows import item_rows


class SearchSizes(NamedTuple):
    """Numbers that kernels read at run time: where rows lie, and which groups of contexts they walk over.

    Attributes:
        strides: of `Found`.
        first_item, n_items: of contexts, of which the first has the first row.
        planned: 1 where tables tell groups and tiles, else 0.
        first_group: in the table.
        n_groups: of those that all programs together walk over.
        run_groups: those of one.
        bits: log₂ of the items of a group.
        tile_items: successive items of queries in a tile.
        n_queries: items of them.
        n_tiles, n_runs: of programs.
    """

    contexts: SideSizes
    queries: SideSizes
    strides: Strides
    first_item: int
    n_items: int
    planned: int
    first_group: int
    n_groups: int
    run_groups: int
    bits: int
    tile_items: int
    n_queries: int
    n_tiles: int
    n_runs: int


def find(
    call: MaxSimCall, plan: MaxSimPlan, operands: tuple[KernelSide, KernelSide], results: Found, strides: Strides,
    first: int = 0, pairs: Tensor | None = None,
) -> None:  # fmt: skip
    """Stores scores or best contexts: of the plan's window from the first item of contexts on, or of listed pairs."""
    queries, count = call.queries, call.n_contexts
    count = count if call.pairs is not None else min(plan.window, count - first)
    n_groups = -(-count >> plan.bits)
    n_runs, run_groups = runs(n_groups, plan.n_tiles)
    sizes = SearchSizes(
        *call.sizes, strides, first, count, int(plan.planned),
        first // plan.window * plan.groups, n_groups, run_groups, plan.bits, plan.tile_items, call.n_queries,
        plan.n_tiles, n_runs,
    )  # fmt: skip
    key = call.key(results.indices.dtype, max(strides) >= 2**30 - 2)
    out = soft_found(call, results) if call.soft else results
    arguments: tuple[Any, ...] = (operands[1], operands[0], plan.tables, out, encoded_sizes(sizes))
    kernel, n_programs = best_of_tiles, n_runs * plan.n_tiles
    if call.pairs is not None or queries.width > SumMax.LARGEST_TILE:
        kernel, pair_tensor = best_of_items, plan.tables.groups
        if call.pairs is not None:
            pair_tensor = call.pairs if pairs is None else pairs
            n_programs = pair_tensor.size(0)
        arguments = (*arguments[:3], pair_tensor, *arguments[3:])
    launch(kernel, (n_programs, 1, 1), arguments, plan.kind, key, plan.kind.warps)


def runs(n_groups: int, n_tiles: int) -> tuple[int, int]:
    """(How many runs, the groups of each) to share groups of contexts out into, for each of the tiles."""
    run_groups = -(-n_groups // max(1, min(n_groups, -(-SumMax.PROGRAMS // n_tiles))))
    return -(-n_groups // run_groups), run_groups


@triton.jit
def grouped(program, n_rows, n_columns, GROUP: tl.constexpr):
    """(row, column) of a program in an order in which programs that run together share rows and columns of tiles."""
    band = program // (GROUP * n_columns)
    first = band * GROUP
    height = tl.minimum(n_rows - first, GROUP)
    within = program % (GROUP * n_columns)
    return first + within % height, within // height


@triton.jit
def first_columns(cells, KIND: tl.constexpr):
    """The first K columns, which are all where queries stay in a tile, of the rows that begin at these cells."""
    k = tl.arange(0, KIND.K)
    rows = cells[:, None] + k[None, :]
    return tl.load(rows) if KIND.D % KIND.K == 0 else tl.load(rows, mask=(k < KIND.D)[None, :], other=0.0)


@triton.jit
def query_rows(queries, numbers, offsets, KIND: tl.constexpr):
    """(Scales, first columns) of rows of queries (M,)."""
    M: tl.constexpr = KIND.M
    scales = tl.load(queries.scales + numbers) if KIND.NORMALIZE else tl.full((M,), 1.0, tl.float32)
    return scales, first_columns(queries.features + offsets, KIND)


@triton.jit
def group_items(tables, group, place, sizes):
    """Items of contexts that have these places in a group, −1 for none."""
    number = (group << decoded(sizes.bits)) + place
    planned = number * 0 < decoded(sizes.planned)
    table_items = tl.load(
        tables.groups + (decoded(sizes.first_group) << decoded(sizes.bits)) + number, mask=planned, other=-1
    )
    plain_items = tl.where(number < decoded(sizes.n_items), decoded(sizes.first_item) + number, -1)
    return tl.where(planned, table_items, plain_items).to(tl.int64)


@triton.jit
def best_of_group(queries, q_offsets, q_scales, q, contexts, tables, group, out, sizes, KIND: tl.constexpr):
    """(M, COLUMNS): the best similarity of a column's item and where INDEX its place, or where SOFT its sum.

    A step takes the next N / COLUMNS rows of every column.
    """
    M: tl.constexpr = KIND.M
    N: tl.constexpr = KIND.N
    COLUMNS: tl.constexpr = KIND.COLUMNS
    PRECISION: tl.constexpr = KIND.PRECISION
    width = COLUMNS >> decoded(sizes.bits)
    slot = tl.arange(0, N)
    item = group_items(tables, group, slot & ((1 << decoded(sizes.bits)) - 1), sizes)
    # Columns without an item repeat the last one's.
    rows, firsts, counts = item_rows(contexts, tl.where(item < 0, tl.max(item, 0), item), sizes.contexts, KIND.UNIT)
    lasts = tl.maximum(counts - 1, 0)
    first_places = slot // COLUMNS * width + (slot % COLUMNS >> decoded(sizes.bits))
    best = tl.full((M, COLUMNS), float("-inf"), tl.float32)
    depths = tl.full((M, COLUMNS), 0, tl.float32 if KIND.SOFT else tl.int32)
    for step in tl.range(tl.cdiv(tl.max(counts, 0), N >> decoded(sizes.bits)), num_stages=KIND.STAGES):
        within = tl.minimum(first_places + step * (N >> decoded(sizes.bits)), lasts).to(tl.int64)
        offsets = firsts + within * decoded(sizes.contexts.row) * KIND.UNIT
        if KIND.RESIDENT:
            s = tl.dot(q, tl.trans(first_columns(contexts.features + offsets, KIND)), input_precision=PRECISION)
        else:
            s = product(
                queries.features, q_offsets, contexts.features, offsets, KIND.D, M, N, KIND.K, KIND.D % KIND.K == 0,
                PRECISION,
            )  # fmt: skip
        if KIND.NORMALIZE:
            s = s * tl.load(contexts.scales + rows + within)[None, :] * q_scales[:, None]
        if KIND.SOFT:
            there = first_places + step * (N >> decoded(sizes.bits)) <= lasts
            s = tl.where(there[None, :], tl.where(s > 0, s, out.slope * s), float("-inf"))
            best, depths = add_exponentials(best, depths, s, out.temperature)
        else:
            s, which = best_of_depth(s, COLUMNS, KIND.INDEX)
            best, depths = better(best, depths, s, step * (N // COLUMNS) + which, KIND.INDEX)
    if KIND.INDEX and not KIND.SOFT:
        depths = depths * width + (tl.arange(0, COLUMNS) >> decoded(sizes.bits))[None, :]
    temperature = out.temperature if KIND.SOFT else 0.0
    return best_of_columns(best, depths, decoded(sizes.bits), temperature, KIND.SOFT, KIND.INDEX)


@triton.jit
def items_of_columns(contexts, tables, group, sizes, KIND: tl.constexpr):
    """(Item of every column, its last place, whether the column stores what was found of it), each (COLUMNS,)."""
    column = tl.arange(0, KIND.COLUMNS)
    group_size = 1 << decoded(sizes.bits)
    item = group_items(tables, group, column & (group_size - 1), sizes)
    _, _, count = item_rows(contexts, tl.maximum(item, 0), sizes.contexts, KIND.UNIT)
    return item, count - 1, (column < group_size) & (item >= 0)


@triton.jit
def start_of(tables, item, stride):
    """Where what queries of an item have found starts in the row of an item of contexts."""
    planned = item * 0 == decoded(stride)
    return tl.where(planned, tl.load(tables.starts + item, mask=planned, other=0), item.to(tl.int64) * decoded(stride))


@triton.jit
def pooled(best, inside, KIND: tl.constexpr):
    """(COLUMNS,): the sum, or the greatest, of the queries inside."""
    if KIND.POOLING == "max":
        return disordered(tl.max(ordered(tl.where(inside[:, None], best, float("-inf"))), 0))
    return tl.sum(tl.where(inside[:, None], best, 0.0), 0)


@triton.jit
def store_found(out, cells, mask, best, depths, last, KIND: tl.constexpr):
    """Stores in cells (COLUMNS, M) what was found, (M, COLUMNS): maxima, and where INDEX their places, up to the item's
    last; of SOFT the greatest and the sums, the soft maxima and where INDEX what they are made of.
    """
    if KIND.SOFT:
        sums = tl.maximum(depths, 1.0, propagate_nan=tl.PropagateNan.ALL)  # 0 of an item without rows
        if KIND.INDEX:
            tl.store(out.indices + cells, tl.trans(best), mask=mask)
            tl.store(out.weights + cells, tl.trans(1.0 / sums), mask=mask)
        tl.store(out.maxima + cells, tl.trans(best + tl.log2(sums) * LN_2 * out.temperature), mask=mask)
    else:
        if KIND.INDEX:
            tl.store(out.indices + cells, tl.minimum(tl.trans(depths), last[:, None]), mask=mask)
        if KIND.VALUES:
            tl.store(out.maxima + cells, tl.trans(best), mask=mask)


@triton.jit
def first_of(best, inside, top, slots):
    """(COLUMNS,): the first of the slots inside where the greatest stands."""
    return tl.min(tl.where(inside[:, None] & (ordered(best) == ordered(top)[None, :]), slots[:, None], BEYOND), 0)


@triton.jit
def tile_items(tables, tile, place, sizes, M: tl.constexpr):
    """Items of queries that have these places in a tile."""
    planned = place * 0 < decoded(sizes.planned)
    from_table = tl.load(tables.items + tile * M + place, mask=planned, other=0)
    return tl.where(planned, from_table, tile * decoded(sizes.tile_items) + place)


@triton.jit
def tile_slots(queries, tables, tile, sizes, KIND: tl.constexpr):
    """For a tile's slots the owners' places among its items, −1 for none, these items, and the rows' places in them.

    In a slot that nobody owns stands the first item's first row.
    """
    M: tl.constexpr = KIND.M
    slot = tl.arange(0, M)
    most, planned = decoded(sizes.queries.most), slot * 0 < decoded(sizes.planned)
    owner = slot // most
    place = slot - owner * most
    item = tile * decoded(sizes.tile_items) + owner
    valid = (owner < decoded(sizes.tile_items)) & (item < decoded(sizes.n_queries))
    _, _, count = item_rows(queries, tl.where(valid, item, 0), sizes.queries, KIND.UNIT)
    valid = valid & (place < count)
    from_table = tl.load(tables.owners + tile * M + slot, mask=planned, other=-1)
    owner = tl.where(planned, from_table, tl.where(valid, owner, -1))
    from_table = tl.load(tables.places + tile * M + slot, mask=planned, other=0)
    place = tl.where(planned, from_table, tl.where(valid, place, 0))
    return owner, tile_items(tables, tile, tl.maximum(owner, 0), sizes, M), place


@triton.jit(do_not_specialize=["sizes"])
def best_of_tiles(queries, contexts, tables, out, sizes, KIND: tl.constexpr):
    """A tile of whole items of queries against a run of groups.

    Stores scores or, where INDEX, every query's context; POOLING "max" stores that of the first best query alone.
    """
    M: tl.constexpr = KIND.M
    tile, run = grouped(tl.program_id(0), decoded(sizes.n_tiles), decoded(sizes.n_runs), 16)
    slot = tl.arange(0, M)
    owners, items, places_of = tile_slots(queries, tables, tile, sizes, KIND)
    n_items = tl.max(owners, 0) + 1
    firsts, begins, _ = item_rows(queries, items, sizes.queries, KIND.UNIT)
    offsets = begins + places_of.to(tl.int64) * decoded(sizes.queries.row) * KIND.UNIT
    scales, q = query_rows(queries, firsts + places_of, offsets, KIND)
    begin = run * decoded(sizes.run_groups)
    for group in range(begin, tl.minimum(begin + decoded(sizes.run_groups), decoded(sizes.n_groups))):
        best, places = best_of_group(queries, offsets, scales, q, contexts, tables, group, out, sizes, KIND)
        item, last, in_group = items_of_columns(contexts, tables, group, sizes, KIND)
        if KIND.INDEX or KIND.VALUES:
            mask = in_group[:, None] & (owners >= 0)[None, :]
            if KIND.POOLING == "max":
                is_first = mask & (slot < 0)[None, :]
                for place in range(n_items):
                    first = first_of(best, owners == place, pooled(best, owners == place, KIND), slot)
                    is_first = is_first | (slot[None, :] == first[:, None])
                mask = mask & is_first
            slots = start_of(tables, items, sizes.strides.index_query) + places_of
            cells = ((item - decoded(sizes.first_item)) * decoded(sizes.strides.index_context))[:, None] + slots[
                None, :
            ]
            store_found(out, cells, mask, best, places, last, KIND)
        else:
            for place in range(n_items):
                score = pooled(best, owners == place, KIND)
                query_item = tile_items(tables, tile, place, sizes, M).to(tl.int64)
                if KIND.POOLING == "avg":
                    _, _, count = item_rows(queries, query_item, sizes.queries, KIND.UNIT)
                    score /= tl.maximum(count, 1).to(tl.float32)
                cells = item * decoded(sizes.strides.score_context) + query_item * decoded(sizes.strides.score_query)
                tl.store(out.scores + cells, score, mask=in_group)


@triton.jit(do_not_specialize=["sizes"], do_not_specialize_on_alignment=["pairs"])
def best_of_items(queries, contexts, tables, pairs, out, sizes, KIND: tl.constexpr):
    """One item of queries, of any length, against a run of groups or, where LISTED, against the other item of a pair.

    Results are stored as `best_of_tiles` stores them, those of a listed pair in the pair's row.
    """
    M: tl.constexpr = KIND.M
    COLUMNS: tl.constexpr = KIND.COLUMNS
    program = tl.program_id(0)
    if KIND.LISTED:
        pair = pairs + 2 * program.to(tl.int64)
        query_item = tl.load(pair + 1 - KIND.CONTEXT_COLUMN)
        begin = tl.load(pair + KIND.CONTEXT_COLUMN)
        end = begin + 1
    else:
        query_item = (program % decoded(sizes.n_tiles)).to(tl.int64)
        begin = program // decoded(sizes.n_tiles) * decoded(sizes.run_groups)
        end = tl.minimum(begin + decoded(sizes.run_groups), decoded(sizes.n_groups))
    query_row, query_begin, n_rows = item_rows(queries, query_item, sizes.queries, KIND.UNIT)
    for group in range(begin, end):
        item, last, in_group = items_of_columns(contexts, tables, group, sizes, KIND)
        if KIND.LISTED:
            cells = tl.full((COLUMNS,), program, tl.int64) * decoded(sizes.strides.index_context)
        else:
            cells = (item - decoded(sizes.first_item)) * decoded(sizes.strides.index_context)
            if KIND.INDEX or KIND.VALUES:
                cells += start_of(tables, query_item, sizes.strides.index_query)
        pool = tl.full((COLUMNS,), float("-inf") if KIND.POOLING == "max" else 0.0, tl.float32)
        pool_slot = tl.full((COLUMNS,), 0, tl.int32)
        pool_place = tl.full((COLUMNS,), 0, tl.int32)
        for piece in range(0, n_rows, M):
            slots = piece + tl.arange(0, M)
            inside = slots < n_rows
            within = tl.minimum(slots, n_rows - 1).to(tl.int64)
            offsets = query_begin + within * decoded(sizes.queries.row) * KIND.UNIT
            scales, q = query_rows(queries, query_row + within, offsets, KIND)
            best, places = best_of_group(queries, offsets, scales, q, contexts, tables, group, out, sizes, KIND)
            piece_score = pooled(best, inside, KIND)
            if KIND.POOLING == "max":
                slot = first_of(best, inside, piece_score, slots)
                place = tl.sum(tl.where(slots[:, None] == slot[None, :], tl.minimum(places, last[None, :]), 0), 0)
                # The first piece's stays among equals, and NaN always does.
                greater = ((pool == pool) & ~(piece_score <= pool)) | (piece == 0)
                pool = tl.where(greater, piece_score, pool)
                pool_slot = tl.where(greater, slot, pool_slot)
                pool_place = tl.where(greater, place, pool_place)
            else:
                pool += piece_score
                mask = in_group[:, None] & inside[None, :]
                store_found(out, cells[:, None] + slots[None, :], mask, best, places, last, KIND)
        if KIND.INDEX or KIND.VALUES:
            if KIND.POOLING == "max":
                in_group = in_group & (pool_slot < n_rows)
                tl.store(out.indices + cells + pool_slot, pool_place, mask=in_group)
                if KIND.VALUES:
                    tl.store(out.maxima + cells + pool_slot, pool, mask=in_group)
        else:
            if KIND.POOLING == "avg":
                pool = pool / tl.maximum(n_rows, 1).to(tl.float32)
            if KIND.LISTED:
                tl.store(out.scores + program + tl.arange(0, COLUMNS), pool, mask=in_group)
            else:
                cells = item * decoded(sizes.strides.score_context) + query_item * decoded(sizes.strides.score_query)
                tl.store(out.scores + cells, pool, mask=in_group)
