"""Triton kernels of Sum-Max: the best context of every query, SCAN Eqs. 9 and 10, without a matrix of similarities.

A tile of queries stays while contexts pass it, item by item, in blocks of N rows. Rows behind an item's end repeat its
last one, which changes no maximum. What each query has found of an item so far is kept for every column of the blocks
and brought together at the item's end alone. Whole items of queries share a tile (`best_of_tiles`), or one item that
may be longer than a tile passes through it in pieces (`best_of_items`).
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import inverse, item_slots, product, row_offsets, tile_items

BEYOND = tl.constexpr(2**30)  # no place of a context
# They change with the batch: kernels for multiples of 16 would be compiled again now and then, and be no faster.
BATCH_SIZES = [
    "query_per_item", "context_per_item", "score_context_stride", "score_query_stride", "index_context_stride",
]  # fmt: skip


@triton.jit
def first_columns(cells, D, K: tl.constexpr, EVEN: tl.constexpr):
    """The first K columns, which are all where queries stay in a tile, of the rows that begin at these cells."""
    k = tl.arange(0, K)
    rows = cells[:, None] + k[None, :]
    return tl.load(rows) if EVEN else tl.load(rows, mask=(k < D)[None, :], other=0.0)


@triton.jit
def block_similarities(
    q, queries, q_offsets, q_scales, contexts, context_norms, row, last, per_item, item_stride, row_stride, D,
    NORMALIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M, N): similarities of queries and of N contexts from `row` on; behind the `last` of them it is repeated."""
    within = tl.minimum(tl.arange(0, N), last)
    first = (row // per_item).to(tl.int64) * item_stride + (row % per_item).to(tl.int64) * row_stride
    offsets = first + within.to(tl.int64) * row_stride
    if RESIDENT:
        s = tl.dot(q, tl.trans(first_columns(contexts + offsets, D, K, EVEN)), input_precision=PRECISION)
    else:
        s = product(queries, q_offsets, contexts, offsets, D, M, N, K, EVEN, PRECISION)
    if NORMALIZE:
        s = s * inverse(tl.load(context_norms + row + within))[None, :] * q_scales[:, None]
    return s


@triton.jit
def better(s, best, starts, start, INDEX: tl.constexpr):
    """The greatest of every cell so far and, where INDEX, the place of the block that had it first; NaN is greatest."""
    if INDEX:
        greater = (s > best) | ((s != s) & (best == best))
        return tl.where(greater, s, best), tl.where(greater, start, starts)
    return tl.maximum(best, s, propagate_nan=tl.PropagateNan.ALL), starts


@triton.jit
def greatest(x, axis: tl.constexpr):
    """The maximum along an axis, NaN where one is NaN."""
    unknown = x != x
    maximum = tl.max(tl.where(unknown, float("-inf"), x), axis)
    return tl.where(tl.max(unknown.to(tl.int32), axis) > 0, float("nan"), maximum)


@triton.jit
def equal(x, y):
    """Whether two are equal, as NaN and NaN are here."""
    return (x == y) | ((x != x) & (y != y))


@triton.jit
def best_rows(best, starts, INDEX: tl.constexpr):
    """(The best similarity of every query (M,), and where INDEX its context's place in the item, the first's)."""
    values = greatest(best, 1)
    places = tl.zeros((best.shape[0],), tl.int32)
    if INDEX:
        columns = starts + tl.arange(0, best.shape[1])[None, :]
        places = tl.min(tl.where(equal(best, values[:, None]), columns, BEYOND), 1)
    return values, places


@triton.jit
def pooled_tile(values, members, counts, POOLING: tl.constexpr):
    """Scores of the tile's items (SEGMENTS,) from the best similarities of their queries."""
    if POOLING == "max":
        return greatest(tl.where(members, values[:, None], float("-inf")), 0)
    sums = tl.sum(tl.where(members, values[:, None], 0.0), 0)
    return sums / tl.maximum(counts, 1).to(tl.float32) if POOLING == "avg" else sums


@triton.jit
def first_best(values, members, M: tl.constexpr):
    """(M,): whether a query is the first of its item's best."""
    tops = greatest(tl.where(members, values[:, None], float("-inf")), 0)
    slot = tl.arange(0, M)
    winners = tl.min(tl.where(members & equal(values[:, None], tops[None, :]), slot[:, None], M), 0)
    return tl.max((members & (slot[:, None] == winners[None, :])).to(tl.int32), 1) > 0


@triton.jit(
    do_not_specialize=["first_item", "n_items", "run_items", "n_tiles"], do_not_specialize_on_alignment=BATCH_SIZES
)
def best_of_tiles(
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_per_item, query_item_stride, query_row_stride,
    contexts, context_norms, blocks, borders, context_per_item, context_item_stride, context_row_stride,
    scores, score_context_stride, score_query_stride,
    indices, values, index_context_stride, index_firsts,
    first_item, n_items, run_items, n_tiles, D,
    INDEX: tl.constexpr, VALUES: tl.constexpr, POOLING: tl.constexpr, NORMALIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr,
    RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of whole items of queries against a run of items of contexts, `run_items` of the `n_items` from the first.

    Stores scores or, where INDEX, every query's context: those of an item of queries stand from `index_firsts` of it on
    in the row of an item of contexts, counted from `first_item`; POOLING "max" stores that of the first best query
    alone. VALUES stores their similarities in the same places.
    """
    program = tl.program_id(0)
    tile = program % n_tiles
    rows, owners = item_slots(query_rows, query_owners, query_rows, query_rows, tile, M, False)
    items, counts = tile_items(query_items, query_counts, query_counts, tile, SEGMENTS, False)
    members = owners[:, None] == tl.arange(0, SEGMENTS)[None, :]
    offsets = row_offsets(rows, query_per_item, query_item_stride, query_row_stride)
    scales = inverse(tl.load(query_norms + rows)) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    q = first_columns(queries + offsets, D, K, EVEN)
    if INDEX:
        own = tl.load(query_items + tile * SEGMENTS + tl.maximum(owners, 0))
        slots = tl.load(index_firsts + own) + rows - tl.load(query_firsts + own)
    best = tl.full((M, N), float("-inf"), tl.float32)
    starts = tl.zeros((M, N), tl.int32)
    run = first_item + program // n_tiles * run_items
    end = tl.minimum(run + run_items, first_item + n_items)
    first_block = tl.load(borders + tl.minimum(run, end))
    end_block = tl.load(borders + end)
    # What stands in the table is read a block ahead, so that features can be fetched several blocks ahead.
    row = tl.load(blocks + first_block * 4)
    left = tl.load(blocks + first_block * 4 + 1)
    item = tl.load(blocks + first_block * 4 + 2)
    start = tl.load(blocks + first_block * 4 + 3)
    for block in range(first_block, end_block):
        entry = blocks + tl.minimum(block + 1, end_block - 1) * 4
        next_row = tl.load(entry)
        next_left = tl.load(entry + 1)
        next_item = tl.load(entry + 2)
        next_start = tl.load(entry + 3)
        s = block_similarities(
            q, queries, offsets, scales, contexts, context_norms, row, left - 1,
            context_per_item, context_item_stride, context_row_stride, D,
            NORMALIZE, M, N, K, RESIDENT, EVEN, PRECISION,
        )  # fmt: skip
        best, starts = better(s, best, starts, start, INDEX)
        if left <= N:
            found, places = best_rows(best, starts, INDEX)
            if INDEX:
                cells = (item - first_item).to(tl.int64) * index_context_stride + slots
                wanted = owners >= 0
                if POOLING == "max":
                    wanted = first_best(found, members, M)
                tl.store(indices + cells, tl.minimum(places, start + left - 1), mask=wanted)
                if VALUES:
                    tl.store(values + cells, found, mask=wanted)
            else:
                cells = item.to(tl.int64) * score_context_stride + items * score_query_stride
                tl.store(scores + cells, pooled_tile(found, members, counts, POOLING), mask=items >= 0)
            best = tl.full((M, N), float("-inf"), tl.float32)
            starts = tl.zeros((M, N), tl.int32)
        row = next_row
        left = next_left
        item = next_item
        start = next_start


@triton.jit(
    do_not_specialize=["first_item", "n_items", "run_items", "n_queries"], do_not_specialize_on_alignment=BATCH_SIZES
)
def best_of_items(
    queries, query_norms, query_firsts, query_lengths, query_per_item, query_item_stride, query_row_stride,
    contexts, context_norms, context_firsts, context_lengths,
    context_per_item, context_item_stride, context_row_stride,
    pairs, scores, score_context_stride, score_query_stride,
    indices, values, index_context_stride, index_firsts,
    first_item, n_items, run_items, n_queries, D,
    LISTED: tl.constexpr, CONTEXT_COLUMN: tl.constexpr,
    INDEX: tl.constexpr, VALUES: tl.constexpr, POOLING: tl.constexpr, NORMALIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One item of queries, of any length, against a run of items of contexts or, where LISTED, against a pair's.

    What it stores is as of `best_of_tiles`; what a listed pair has found stands in the pair's own row.
    """
    program = tl.program_id(0)
    if LISTED:
        pair = pairs + 2 * program.to(tl.int64)
        query_item = tl.load(pair + 1 - CONTEXT_COLUMN)
        run = tl.load(pair + CONTEXT_COLUMN)
        end = run + 1
    else:
        query_item = (program % n_queries).to(tl.int64)
        run = (first_item + program // n_queries * run_items).to(tl.int64)
        end = tl.minimum(run + run_items, first_item + n_items)
    query_row = tl.load(query_firsts + query_item)
    n_rows = tl.load(query_lengths + query_item)
    for item in range(run, end):
        context_row = tl.load(context_firsts + item)
        n_contexts = tl.load(context_lengths + item)
        if LISTED:
            cells = program.to(tl.int64) * index_context_stride
        else:
            cells = (item - first_item) * index_context_stride + tl.load(index_firsts + query_item)
        pool = float("-inf") if POOLING == "max" else 0.0
        pool_slot = 0
        pool_place = 0
        for piece in range(0, n_rows, M):
            slots = piece + tl.arange(0, M)
            inside = slots < n_rows
            rows = (query_row + tl.minimum(slots, n_rows - 1)).to(tl.int64)
            offsets = row_offsets(rows, query_per_item, query_item_stride, query_row_stride)
            scales = inverse(tl.load(query_norms + rows)) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
            q = first_columns(queries + offsets, D, K, EVEN)
            best = tl.full((M, N), float("-inf"), tl.float32)
            starts = tl.zeros((M, N), tl.int32)
            for start in range(0, n_contexts, N):
                s = block_similarities(
                    q, queries, offsets, scales, contexts, context_norms, context_row + start, n_contexts - start - 1,
                    context_per_item, context_item_stride, context_row_stride, D,
                    NORMALIZE, M, N, K, RESIDENT, EVEN, PRECISION,
                )  # fmt: skip
                best, starts = better(s, best, starts, start, INDEX)
            found, places = best_rows(best, starts, INDEX)
            places = tl.minimum(places, n_contexts - 1)
            if POOLING == "max":
                top = greatest(tl.where(inside, found, float("-inf")), 0)
                tops = tl.full((M,), top, tl.float32)
                slot = tl.min(tl.where(inside & equal(found, tops), slots, BEYOND), 0)
                # Of equals the first piece's stays, and NaN always does.
                greater = (top > pool) | ((top != top) & (pool == pool)) | (piece == 0)
                place = tl.sum(tl.where(slots == slot, places, 0), 0)
                pool = tl.where(greater, top, pool)
                pool_slot = tl.where(greater, slot, pool_slot)
                pool_place = tl.where(greater, place, pool_place)
            else:
                pool += tl.sum(tl.where(inside, found, 0.0), 0)
                if INDEX:
                    tl.store(indices + cells + slots, places, mask=inside)
                    if VALUES:
                        tl.store(values + cells + slots, found, mask=inside)
        if INDEX:
            if POOLING == "max":
                tl.store(indices + cells + pool_slot, pool_place)
                if VALUES:
                    tl.store(values + cells + pool_slot, pool)
        else:
            if POOLING == "avg":
                pool = pool / n_rows.to(tl.float32)
            if LISTED:
                tl.store(scores + program, pool)
            else:
                tl.store(scores + item * score_context_stride + query_item * score_query_stride, pool)
