"""Triton kernels of Sum-Max's gradients, from the place of every query's best context.

A query's gradient is a weighted sum of its best contexts, which are gathered; a context's is one of the queries that
took it, a product with the matrix that tells which did. Where few rows have long sums, runs of a sum have programs of
their own and are added afterwards: every sum has one order. With NORMALIZE features count by x / ‖x‖: what of the
gradient points along x, which is the sum of its similarities by their weights, is taken out.
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import row_offsets

# They change with the batch, as those of `triton_kernels.BATCH_SIZES`.
BATCH_SIZES = ["query_per_item", "context_per_item", "grad_context_stride", "grad_query_stride", "index_context_stride"]


@triton.jit
def store_gradients(
    out, sums, along, features, scales, row, left, per_item, item_stride, row_stride, column, D,
    NORMALIZE: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Some columns of a block of rows' gradients, in place or, where ADD, beside what is there."""
    slot = tl.arange(0, ROWS)
    rows = (row + tl.minimum(slot, left - 1)).to(tl.int64)
    inside = (slot < left)[:, None] & (column < D)[None, :]
    if NORMALIZE:
        own_scales = tl.load(scales + rows)[:, None]
        offsets = row_offsets(rows, per_item, item_stride, row_stride)
        x = tl.load(features + offsets[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
        sums = (sums - x * own_scales * along[:, None]) * own_scales
    cells = out + rows[:, None] * D + column[None, :]
    if ADD:
        sums += tl.load(cells, mask=inside, other=0.0).to(tl.float32)
    tl.store(cells, sums, mask=inside)


@triton.jit
def run_of(begin, end, run, n_runs):
    """(Begin, end) of one of the runs that a sum is shared out into."""
    length = tl.cdiv(end - begin, n_runs)
    return begin + run * length, tl.minimum(begin + (run + 1) * length, end)


@triton.jit
def leave(
    out, runs, alongs, run, n_runs, n_rows, sums, along, features, scales, row, left, per_item, item_stride, row_stride,
    column, D, NORMALIZE: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Stores some columns of a block of rows' gradients or, of one of several runs, its share of their sums."""
    if n_runs > 1:
        slot = tl.arange(0, ROWS)
        rows = run.to(tl.int64) * n_rows + row + slot
        tl.store(runs + rows[:, None] * D + column[None, :], sums, mask=(slot < left)[:, None] & (column < D)[None, :])
        if NORMALIZE:
            tl.store(alongs + rows, along, mask=slot < left)  # alike in all columns
    else:
        store_gradients(
            out, sums, along, features, scales, row, left, per_item, item_stride, row_stride, column, D,
            NORMALIZE, ADD, ROWS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_runs", "n_rows", "first_block"], do_not_specialize_on_alignment=["per_item"])
def sum_of_runs(
    runs, alongs, blocks, features, scales, per_item, item_stride, row_stride, out, n_runs, n_rows, first_block, D,
    NORMALIZE: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, RUNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some columns of a row's gradient from what the runs have left."""
    block = blocks + 4 * (first_block + tl.program_id(0) // ROWS)
    slot = tl.program_id(0) % ROWS
    left = tl.load(block + 1) - slot
    if left > 0:
        row = tl.load(block) + slot
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        sums = tl.zeros((1, WIDTH), tl.float32)
        along = tl.zeros((1,), tl.float32)
        for first in range(0, n_runs, RUNS):
            run = first + tl.arange(0, RUNS)
            inside = run < n_runs
            rows = run.to(tl.int64) * n_rows + row
            cells = rows[:, None] * D + column[None, :]
            sums += tl.sum(tl.load(runs + cells, mask=inside[:, None] & (column < D)[None, :], other=0.0), 0)[None, :]
            if NORMALIZE:
                along += tl.sum(tl.load(alongs + rows, mask=inside, other=0.0), 0)
        store_gradients(
            out, sums, along, features, scales, row, left, per_item, item_stride, row_stride, column, D,
            NORMALIZE, ADD, 1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["first_item", "n_items", "n_runs", "n_rows"], do_not_specialize_on_alignment=BATCH_SIZES)
def query_gradients(
    queries, query_scales, query_lengths, blocks, query_per_item, query_item_stride, query_row_stride,
    contexts, context_scales, context_firsts, context_per_item, context_item_stride, context_row_stride,
    pairs, order, begins, grad_scores, grad_context_stride, grad_query_stride,
    indices, values, index_context_stride, index_firsts, out, runs, alongs, n_runs, n_rows, first_item, n_items, D,
    LISTED: tl.constexpr, CONTEXT_COLUMN: tl.constexpr, AVERAGE: tl.constexpr, NORMALIZE: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Of a block of queries: over `n_items` items of contexts from the first or, where LISTED, over the item's pairs.

    The best contexts in so many ITEMS are gathered at a time. Pair k of those that `order` tells stands in row order[k]
    of all that has a row for every pair; item i's are begins[i] to begins[i + 1].
    """
    block = blocks + 4 * tl.program_id(0)
    row = tl.load(block)
    left = tl.load(block + 1)
    own = tl.load(block + 2).to(tl.int64)
    ahead = tl.arange(0, ITEMS * ROWS) // ROWS
    slot = tl.arange(0, ITEMS * ROWS) % ROWS
    place = tl.load(block + 3) + slot
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    if LISTED:
        begin = tl.load(begins + own)
        end = tl.load(begins + own + 1)
    else:
        begin = 0
        end = n_items
        place += tl.load(index_firsts + own)
    begin, end = run_of(begin, end, tl.program_id(2), n_runs)
    for number in range(begin, end, ITEMS):
        inside = (number + ahead < end) & (slot < left)
        if LISTED:
            local = tl.load(order + number + ahead, mask=inside, other=0)
            item = tl.load(pairs + 2 * local + CONTEXT_COLUMN)
            weight = tl.load(grad_scores + local * grad_context_stride)
        else:
            local = (number + ahead).to(tl.int64)
            item = first_item + local
            cells = item * grad_context_stride + own * grad_query_stride
            weight = tl.load(grad_scores + cells, mask=inside, other=0.0)
        cells = local * index_context_stride + place
        best = tl.load(indices + cells, mask=inside, other=-1)
        taken = best >= 0
        rows = (tl.load(context_firsts + item, mask=inside, other=0) + tl.maximum(best, 0)).to(tl.int64)
        offsets = row_offsets(rows, context_per_item, context_item_stride, context_row_stride)
        x = tl.load(
            contexts + offsets[:, None] + column[None, :], mask=taken[:, None] & (column < D)[None, :], other=0.0
        ).to(tl.float32)
        weights = tl.where(taken, weight, 0.0)
        if NORMALIZE:
            share = weights * tl.load(values + cells, mask=taken, other=0.0)
            along += tl.sum(tl.reshape(share, (ITEMS, ROWS)), 0)
            weights *= tl.load(context_scales + rows)
        sums += tl.sum(tl.reshape(weights[:, None] * x, (ITEMS, ROWS, WIDTH)), 0)
    if AVERAGE:
        count = tl.load(query_lengths + own).to(tl.float32)
        sums /= count
        along /= count
    leave(
        out, runs, alongs, tl.program_id(2), n_runs, n_rows, sums, along, queries, query_scales, row, left,
        query_per_item, query_item_stride, query_row_stride, column, D, NORMALIZE, ADD, ROWS,
    )  # fmt: skip


@triton.jit
def taken_queries(
    sums, along, best, weights, cells, values, start, queries, query_scales, rows, per_item, item_stride, row_stride,
    column, D, NORMALIZE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds some queries to the sums of the contexts that they take, and their similarities to `along`.

    Queries that take none of these contexts are not read. SPLIT multiplies float16 features in float32: gradients of
    scores may be beyond what float16 holds.
    """
    taken = (best >= start) & (best < start + ROWS)
    offsets = row_offsets(rows, per_item, item_stride, row_stride)
    x = tl.load(queries + offsets[:, None] + column[None, :], mask=taken[:, None] & (column < D)[None, :], other=0.0)
    takes = best[None, :] == (start + tl.arange(0, ROWS))[:, None]
    if NORMALIZE:
        along += tl.sum(tl.where(takes, (weights * tl.load(values + cells, mask=taken, other=0.0))[None, :], 0.0), 1)
        weights = weights * tl.load(query_scales + rows)
    shares = tl.where(takes, weights[None, :], 0.0)
    if SPLIT:
        sums = tl.dot(shares, x.to(tl.float32), sums, input_precision=PRECISION)
    else:
        sums = tl.dot(shares.to(x.dtype), x, sums, input_precision=PRECISION)
    return sums, along


@triton.jit(
    do_not_specialize=["first_item", "first_block", "n_queries", "n_runs", "n_rows"],
    do_not_specialize_on_alignment=BATCH_SIZES,
)
def context_gradients(
    contexts, context_scales, blocks, context_per_item, context_item_stride, context_row_stride,
    queries, query_scales, query_firsts, query_lengths, valid_rows, valid_items,
    query_per_item, query_item_stride, query_row_stride,
    pairs, order, begins, grad_scores, grad_context_stride, grad_query_stride,
    indices, values, index_context_stride, out, runs, alongs, n_runs, n_rows, first_item, first_block, n_queries, D,
    LISTED: tl.constexpr, CONTEXT_COLUMN: tl.constexpr, AVERAGE: tl.constexpr, NORMALIZE: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Of a block of contexts: over all of the `n_queries` queries or, where LISTED, over those of the item's pairs."""
    block = blocks + 4 * (first_block + tl.program_id(0))
    row = tl.load(block)
    left = tl.load(block + 1)
    own = tl.load(block + 2).to(tl.int64)
    start = tl.load(block + 3)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    if LISTED:
        begin, end = run_of(tl.load(begins + own), tl.load(begins + own + 1), tl.program_id(2), n_runs)
        for number in range(begin, end):
            local = tl.load(order + number)
            item = tl.load(pairs + 2 * local + 1 - CONTEXT_COLUMN)
            count = tl.load(query_lengths + item)
            weight = tl.load(grad_scores + local * grad_context_stride)
            if AVERAGE:
                weight /= count.to(tl.float32)
            for piece in range(0, count, QUERIES):
                place = piece + tl.arange(0, QUERIES)
                cells = local * index_context_stride + place
                best = tl.load(indices + cells, mask=place < count, other=-1)
                rows = (tl.load(query_firsts + item) + tl.minimum(place, count - 1)).to(tl.int64)
                sums, along = taken_queries(
                    sums, along, best, tl.full((QUERIES,), weight, tl.float32), cells, values, start,
                    queries, query_scales, rows, query_per_item, query_item_stride, query_row_stride, column, D,
                    NORMALIZE, ROWS, SPLIT, PRECISION,
                )  # fmt: skip
    else:
        begin, end = run_of(0, n_queries, tl.program_id(2), n_runs)
        for piece in range(begin, end, QUERIES):
            number = piece + tl.arange(0, QUERIES)
            inside = number < end
            cells = (own - first_item) * index_context_stride + number
            best = tl.load(indices + cells, mask=inside, other=-1)
            rows = tl.load(valid_rows + number, mask=inside, other=0).to(tl.int64)
            items = tl.load(valid_items + number, mask=inside, other=0).to(tl.int64)
            weights = tl.load(grad_scores + own * grad_context_stride + items * grad_query_stride)
            if AVERAGE:
                weights /= tl.load(query_lengths + items).to(tl.float32)
            sums, along = taken_queries(
                sums, along, best, weights, cells, values, start, queries, query_scales, rows,
                query_per_item, query_item_stride, query_row_stride, column, D, NORMALIZE, ROWS, SPLIT, PRECISION,
            )  # fmt: skip
    leave(
        out, runs, alongs, tl.program_id(2), n_runs, n_rows, sums, along, contexts, context_scales, row, left,
        context_per_item, context_item_stride, context_row_stride, column, D, NORMALIZE, ADD, ROWS,
    )  # fmt: skip
