"""Triton kernels of Sum-Max: the best context of every query, SCAN Eqs. 9 and 10, without a matrix of similarities.

A tile of queries stays while groups of items of contexts pass it (`item_groups`). Every item of a group has columns of
its own, so that maxima of cells are maxima of items, whatever their lengths: what a query has found of an item in one
column is brought together with the item's other columns at the group's end alone. Rows behind an item's end repeat its
last one, which changes no maximum. Whole items of queries share a tile (`best_of_tiles`), or one item that may be
longer than a tile passes through it in pieces (`best_of_items`).
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import grouped, item_slots, product, row_offsets

BEYOND = tl.constexpr(2**30)  # no place of a context
# They change with the batch: kernels for multiples of 16 would be compiled again now and then, and be no faster.
BATCH_SIZES = [
    "query_per_item", "context_per_item", "score_context_stride", "score_query_stride", "index_context_stride",
]  # fmt: skip
COUNTS = ["first_item", "first_group", "n_groups", "run_groups", "bits"]  # nor are they worth a kernel where 1


@triton.jit
def first_columns(cells, D, K: tl.constexpr, EVEN: tl.constexpr):
    """The first K columns, which are all where queries stay in a tile, of the rows that begin at these cells."""
    k = tl.arange(0, K)
    rows = cells[:, None] + k[None, :]
    return tl.load(rows) if EVEN else tl.load(rows, mask=(k < D)[None, :], other=0.0)


@triton.jit
def better(a, a_places, b, b_places, INDEX: tl.constexpr):
    """The greater of a and b and, where INDEX, its place: a's where both are equal. NaN is greatest."""
    if INDEX:
        greater = (a == a) & ~(b <= a)
        return tl.where(greater, b, a), tl.where(greater, b_places, a_places)
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL), a_places


@triton.jit
def parted(x, NEAR: tl.constexpr):
    """(Columns whose number has no bit NEAR, those that are NEAR behind them), each in half as many columns."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    a, b = tl.split(tl.permute(tl.reshape(x, (M, N // (2 * NEAR), 2, NEAR)), (0, 1, 3, 2)))
    return tl.reshape(a, (M, N // 2)), tl.reshape(b, (M, N // 2))


@triton.jit
def best_of_depth(s, COLUMNS: tl.constexpr, INDEX: tl.constexpr):
    """(M, COLUMNS): the best of the rows that have passed through a column together and, where INDEX, which it is."""
    which = tl.zeros((s.shape[0], s.shape[1]), tl.int32)
    for bit in tl.static_range(3):
        if s.shape[1] > COLUMNS:
            a, b = parted(s, COLUMNS)
            a_which, b_which = parted(which, COLUMNS)
            s, which = better(a, a_which, b, b_which + (1 << bit), INDEX)
    return s, which


@triton.jit
def ordered(x):
    """int32 that are ordered as x is; NaN, of any kind, is greatest, and zeros are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def disordered(order):
    """What `ordered` was made of."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def best_of_columns(best, places, bits, INDEX: tl.constexpr):
    """The best of all columns of an item, in each of them, and where INDEX the first place that has it."""
    M: tl.constexpr = best.shape[0]
    COLUMNS: tl.constexpr = best.shape[1]
    order = ordered(best)
    for bit in tl.static_range(7):
        if 1 << bit < COLUMNS:  # noqa: SIM102 (known when it is compiled)
            if bits == bit:
                shape: tl.constexpr = (M, COLUMNS >> bit, 1 << bit)
                cells = tl.reshape(order, shape)
                top = tl.broadcast_to(tl.max(cells, 1, keep_dims=True), shape)
                if INDEX:
                    first = tl.min(tl.where(cells == top, tl.reshape(places, shape), BEYOND), 1, keep_dims=True)
                    places = tl.reshape(tl.broadcast_to(first, shape), (M, COLUMNS))
                order = tl.reshape(top, (M, COLUMNS))
    return disordered(order), places


@triton.jit
def best_of_group(
    q, queries, q_offsets, q_scales, contexts, context_scales, rows, lasts, bits, n_rows,
    per_item, item_stride, row_stride, D,
    INDEX: tl.constexpr, NORMALIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
    K: tl.constexpr, RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M, COLUMNS): the best similarity of a column's item, of at most `n_rows`, and where INDEX its place.

    A step takes the next N / COLUMNS rows of every column, whose items begin at `rows` and end `lasts` behind (N,).
    """
    width = COLUMNS >> bits
    slot = tl.arange(0, N)
    first_places = slot // COLUMNS * width + (slot % COLUMNS >> bits)
    firsts = row_offsets(rows, per_item, item_stride, row_stride)
    best = tl.full((M, COLUMNS), float("-inf"), tl.float32)
    depths = tl.zeros((M, COLUMNS), tl.int32)
    for step in range(tl.cdiv(n_rows, N >> bits)):
        within = tl.minimum(first_places + step * (N >> bits), lasts).to(tl.int64)
        offsets = firsts + within * row_stride
        if RESIDENT:
            s = tl.dot(q, tl.trans(first_columns(contexts + offsets, D, K, EVEN)), input_precision=PRECISION)
        else:
            s = product(queries, q_offsets, contexts, offsets, D, M, N, K, EVEN, PRECISION)
        if NORMALIZE:
            s = s * tl.load(context_scales + rows + within)[None, :] * q_scales[:, None]
        s, which = best_of_depth(s, COLUMNS, INDEX)
        best, depths = better(best, depths, s, step * (N // COLUMNS) + which, INDEX)
    places = depths
    if INDEX:
        places = depths * width + (tl.arange(0, COLUMNS) >> bits)[None, :]
    return best_of_columns(best, places, bits, INDEX)


@triton.jit
def pooled(found, inside, POOLING: tl.constexpr):
    """(COLUMNS,): the sum, or the greatest, of the queries inside."""
    if POOLING == "max":
        return disordered(tl.max(ordered(tl.where(inside[:, None], found, float("-inf"))), 0))
    return tl.sum(tl.where(inside[:, None], found, 0.0), 0)


@triton.jit
def first_of(found, inside, top, slots):
    """(COLUMNS,): the first of the slots inside where the greatest stands."""
    return tl.min(tl.where(inside[:, None] & (ordered(found) == ordered(top)[None, :]), slots[:, None], BEYOND), 0)


@triton.jit(do_not_specialize=[*COUNTS, "n_tiles", "n_runs"], do_not_specialize_on_alignment=BATCH_SIZES)
def best_of_tiles(
    queries, query_scales, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_per_item, query_item_stride, query_row_stride,
    contexts, context_scales, groups, context_per_item, context_item_stride, context_row_stride,
    scores, score_context_stride, score_query_stride,
    indices, values, index_context_stride, index_firsts,
    first_item, first_group, n_groups, run_groups, bits, n_tiles, n_runs, D,
    INDEX: tl.constexpr, VALUES: tl.constexpr, POOLING: tl.constexpr, NORMALIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr,
    RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of whole items of queries against a run of groups, `run_groups` of the `n_groups` from the first.

    Stores scores or, where INDEX, every query's context: those of an item of queries stand from `index_firsts` of it on
    in the row of an item of contexts, counted from `first_item`; POOLING "max" stores that of the first best query
    alone. VALUES stores their similarities in the same places.
    """
    tile, run = grouped(tl.program_id(0), n_tiles, n_runs, 16)
    rows, owners = item_slots(query_rows, query_owners, query_rows, query_rows, tile, M, False)
    n_own = tl.max(owners, 0) + 1
    offsets = row_offsets(rows, query_per_item, query_item_stride, query_row_stride)
    scales = tl.load(query_scales + rows) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    q = first_columns(queries + offsets, D, K, EVEN)
    column = tl.arange(0, COLUMNS)
    abreast = 1 << bits
    for group in range(first_group + run * run_groups, first_group + tl.minimum((run + 1) * run_groups, n_groups)):
        items = groups + group * abreast * 3
        of_columns = items + (tl.arange(0, N) & (abreast - 1)) * 3
        found, places = best_of_group(
            q, queries, offsets, scales, contexts, context_scales,
            tl.load(of_columns).to(tl.int64), tl.load(of_columns + 1) - 1, bits, tl.load(items + 1),
            context_per_item, context_item_stride, context_row_stride, D,
            INDEX, NORMALIZE, M, N, COLUMNS, K, RESIDENT, EVEN, PRECISION,
        )  # fmt: skip
        item = tl.load(items + (column & (abreast - 1)) * 3 + 2).to(tl.int64)
        wanted = (column < abreast) & (item >= 0)
        if INDEX:
            chosen = wanted[:, None] & (owners >= 0)[None, :]
            if POOLING == "max":
                slot = tl.arange(0, M)
                taken = chosen & (slot < 0)[None, :]
                for place in range(n_own):
                    first = first_of(found, owners == place, pooled(found, owners == place, POOLING), slot)
                    taken = taken | (slot[None, :] == first[:, None])
                chosen = chosen & taken
            own = tl.load(query_items + tile * SEGMENTS + tl.maximum(owners, 0))
            slots = tl.load(index_firsts + own) + rows - tl.load(query_firsts + own)
            cells = ((item - first_item) * index_context_stride)[:, None] + slots[None, :]
            last = tl.load(items + (column & (abreast - 1)) * 3 + 1) - 1
            tl.store(indices + cells, tl.minimum(tl.trans(places), last[:, None]), mask=chosen)
            if VALUES:
                tl.store(values + cells, tl.trans(found), mask=chosen)
        else:
            for place in range(n_own):
                score = pooled(found, owners == place, POOLING)
                if POOLING == "avg":
                    score /= tl.load(query_counts + tile * SEGMENTS + place).to(tl.float32)
                own_item = tl.load(query_items + tile * SEGMENTS + place).to(tl.int64)
                cells = item * score_context_stride + own_item * score_query_stride
                tl.store(scores + cells, score, mask=wanted)


@triton.jit(do_not_specialize=[*COUNTS, "n_queries"], do_not_specialize_on_alignment=BATCH_SIZES)
def best_of_items(
    queries, query_scales, query_firsts, query_lengths, query_per_item, query_item_stride, query_row_stride,
    contexts, context_scales, groups,
    context_per_item, context_item_stride, context_row_stride,
    pairs, scores, score_context_stride, score_query_stride,
    indices, values, index_context_stride, index_firsts,
    first_item, first_group, n_groups, run_groups, bits, n_queries, D,
    LISTED: tl.constexpr, CONTEXT_COLUMN: tl.constexpr,
    INDEX: tl.constexpr, VALUES: tl.constexpr, POOLING: tl.constexpr, NORMALIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, K: tl.constexpr,
    RESIDENT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One item of queries, of any length, against a run of groups or, where LISTED, against the other item of a pair.

    What it stores is as of `best_of_tiles`; what a listed pair has found stands in the pair's own row.
    """
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    abreast = 1 << bits
    if LISTED:
        pair = pairs + 2 * program.to(tl.int64)
        query_item = tl.load(pair + 1 - CONTEXT_COLUMN)
        begin = tl.load(pair + CONTEXT_COLUMN)
        end = begin + 1
    else:
        query_item = (program % n_queries).to(tl.int64)
        begin = first_group + program // n_queries * run_groups
        end = tl.minimum(begin + run_groups, first_group + n_groups)
    query_row = tl.load(query_firsts + query_item)
    n_rows = tl.load(query_lengths + query_item)
    for group in range(begin, end):
        items = groups + group * abreast * 3
        of_columns = items + (tl.arange(0, N) & (abreast - 1)) * 3
        context_rows = tl.load(of_columns).to(tl.int64)
        lasts = tl.load(of_columns + 1) - 1
        item = tl.load(items + (column & (abreast - 1)) * 3 + 2).to(tl.int64)
        last = tl.load(items + (column & (abreast - 1)) * 3 + 1) - 1
        wanted = (column < abreast) & (item >= 0)
        if LISTED:
            cells = tl.full((COLUMNS,), program, tl.int64) * index_context_stride
        else:
            cells = (item - first_item) * index_context_stride + tl.load(index_firsts + query_item)
        pool = tl.full((COLUMNS,), float("-inf") if POOLING == "max" else 0.0, tl.float32)
        pool_slot = tl.zeros((COLUMNS,), tl.int32)
        pool_place = tl.zeros((COLUMNS,), tl.int32)
        for piece in range(0, n_rows, M):
            slots = piece + tl.arange(0, M)
            inside = slots < n_rows
            rows = (query_row + tl.minimum(slots, n_rows - 1)).to(tl.int64)
            offsets = row_offsets(rows, query_per_item, query_item_stride, query_row_stride)
            scales = tl.load(query_scales + rows) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
            q = first_columns(queries + offsets, D, K, EVEN)
            found, places = best_of_group(
                q, queries, offsets, scales, contexts, context_scales, context_rows, lasts, bits,
                tl.load(items + 1), context_per_item, context_item_stride, context_row_stride, D,
                INDEX, NORMALIZE, M, N, COLUMNS, K, RESIDENT, EVEN, PRECISION,
            )  # fmt: skip
            places = tl.minimum(places, last[None, :])
            of_piece = pooled(found, inside, POOLING)
            if POOLING == "max":
                slot = first_of(found, inside, of_piece, slots)
                place = tl.sum(tl.where(slots[:, None] == slot[None, :], places, 0), 0)
                # Of equals the first piece's stays, and NaN always does.
                greater = ((pool == pool) & ~(of_piece <= pool)) | (piece == 0)
                pool = tl.where(greater, of_piece, pool)
                pool_slot = tl.where(greater, slot, pool_slot)
                pool_place = tl.where(greater, place, pool_place)
            else:
                pool += of_piece
                if INDEX:
                    chosen = wanted[:, None] & inside[None, :]
                    tl.store(indices + cells[:, None] + slots[None, :], tl.trans(places), mask=chosen)
                    if VALUES:
                        tl.store(values + cells[:, None] + slots[None, :], tl.trans(found), mask=chosen)
        if INDEX:
            if POOLING == "max":
                tl.store(indices + cells + pool_slot, pool_place, mask=wanted)
                if VALUES:
                    tl.store(values + cells + pool_slot, pool, mask=wanted)
        else:
            if POOLING == "avg":
                pool = pool / n_rows.to(tl.float32)
            if LISTED:
                tl.store(scores + program + column, pool, mask=wanted)
            else:
                tl.store(scores + item * score_context_stride + query_item * score_query_stride, pool, mask=wanted)
