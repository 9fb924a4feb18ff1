"""Sum-Max's gradients in Triton, from the place of every query's best context.

A query's gradient is a weighted sum of its best contexts, which are gathered; a context's is one of the queries that
took it, a product with the matrix that tells which did. Where few rows have long sums, runs of a sum have programs of
their own and are added afterwards: every sum has one order. Sums of half-precision features are float32, rounded once
for each part. Where similarities are cosines features count by x / ‖x‖: what of the gradient points along x, which is
the sum of its similarities by their weights, is taken out.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_tiles import decoded
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.triton.call import SideSizes
from crossret_kernels.maxsim.triton.forward import start_of
from crossret_kernels.maxsim.triton.rows import item_rows

RUNS = tl.constexpr(SumMax.RUNS)


class GradientSums(NamedTuple):
    """Where gradients go, (rows, D), and what runs of their sums leave: (runs, rows, D), and (runs, rows) along x."""

    out: Tensor
    runs: Tensor
    alongs: Tensor


class GradientSizes(NamedTuple):
    """Numbers that kernels read at run time.

    Attributes:
        side, others: of the side whose gradients they make, and of the other one.
        grad_context, grad_query: strides of scores' gradients.
        index_context, index_query: of best contexts, as of `forward.Strides`.
        n_runs: of a sum.
        first_item, n_items: of contexts; `first_item` has the first row of best contexts.
        first_block, blocks: the first block's item, and how many an item has.
        n_queries: places for what is found of all; for soft maxima their items.
        later: 1 where an earlier part has left its gradients where this one's belong, else 0.
    """

    side: SideSizes
    others: SideSizes
    grad_context: int
    grad_query: int
    index_context: int
    index_query: int
    n_runs: int
    first_item: int
    n_items: int
    first_block: int
    blocks: int
    n_queries: int
    later: int


class GradientKind(NamedTuple):
    """Specialisation of the kernels of gradients.

    Attributes:
        OF_CONTEXTS: whether gradients are theirs.
        ROWS: of a block.
        STEP: items of contexts, or queries, at a time; for soft maxima rows of the other side.
        WIDTH: columns of features of a program.
        WEIGHTED: whether maxima have weights.
        SPLIT: whether float16 features are multiplied in float32: gradients of scores may be beyond what float16 holds.
        K: columns of features at a time, of products that are made again.
    """

    LISTED: bool
    CONTEXT_COLUMN: int
    OF_CONTEXTS: bool
    AVERAGE: bool
    WEIGHTED: bool
    NORMALIZE: bool
    ROWS: int
    STEP: int
    WIDTH: int
    SPLIT: bool
    PRECISION: str
    K: int
    D: int
    UNIT: int


@triton.jit
def block_of(side, number, sizes, KIND: tl.constexpr):
    """A block of rows: (item, place of the first row in it, that row's number, where it begins, rows from it on)."""
    item = decoded(sizes.first_block).to(tl.int64) + number // decoded(sizes.blocks)
    start = number % decoded(sizes.blocks) * KIND.ROWS
    row, begin, count = item_rows(side, item, sizes.side, KIND.UNIT)
    return item, start, row + start, begin + start.to(tl.int64) * decoded(sizes.side.row) * KIND.UNIT, count - start


@triton.jit
def run_of(listed, item, count, sizes, left, KIND: tl.constexpr):
    """(Begin, end) of one of the runs that a sum is shared out into, over so many of the others or, where LISTED, the
    item's pairs; of a block without rows they are one.
    """
    if KIND.LISTED:
        begin, end = tl.load(listed.begins + item), tl.load(listed.begins + item + 1)
    else:
        begin, end = 0, count
    n_runs = decoded(sizes.n_runs)
    length = tl.cdiv(end - begin, n_runs)
    begin += tl.program_id(2) * length
    return begin, tl.where(left > 0, tl.minimum(begin + length, end), begin)


@triton.jit
def store_gradients(sums, total, along, side, row, begin, left, sizes, ROWS: tl.constexpr, KIND: tl.constexpr):
    """Some columns of a block of rows' gradients, beside what earlier parts have left there."""
    slot = tl.arange(0, ROWS)
    column = tl.program_id(1) * KIND.WIDTH + tl.arange(0, KIND.WIDTH)
    rows = row.to(tl.int64) + slot
    inside = (slot < left)[:, None] & (column < KIND.D)[None, :]
    if KIND.NORMALIZE:
        scales = tl.load(side.scales + rows, mask=slot < left, other=0.0)[:, None]
        offsets = begin + slot.to(tl.int64) * decoded(sizes.side.row) * KIND.UNIT
        x = tl.load(side.features + offsets[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total = (total - x * scales * along[:, None]) * scales
    cells = sums.out + rows[:, None] * KIND.D + column[None, :]
    if decoded(sizes.later) > 0:
        total += tl.load(cells, mask=inside, other=0.0).to(tl.float32)
    tl.store(cells, total, mask=inside)


@triton.jit
def leave(sums, total, along, side, row, begin, left, sizes, KIND: tl.constexpr):
    """Stores some columns of a block of rows' gradients or, of one of several runs, its share of their sums."""
    if decoded(sizes.n_runs) > 1:
        slot = tl.arange(0, KIND.ROWS)
        column = tl.program_id(1) * KIND.WIDTH + tl.arange(0, KIND.WIDTH)
        rows = tl.program_id(2).to(tl.int64) * decoded(sizes.side.n_rows) + row + slot
        inside = (slot < left)[:, None] & (column < KIND.D)[None, :]
        tl.store(sums.runs + rows[:, None] * KIND.D + column[None, :], total, mask=inside)
        if KIND.NORMALIZE:  # alike in all columns: the first ones store it
            tl.store(sums.alongs + rows, along, mask=slot < tl.where(tl.program_id(1) == 0, left, 0))
    else:
        store_gradients(sums, total, along, side, row, begin, left, sizes, KIND.ROWS, KIND)


@triton.jit(do_not_specialize=["sizes"])
def sum_of_runs(side, sums, sizes, KIND: tl.constexpr):
    """Some columns of a row's gradient from what the runs have left."""
    WIDTH: tl.constexpr = KIND.WIDTH
    _, _, row, begin, left = block_of(side, tl.program_id(0) // KIND.ROWS, sizes, KIND)
    slot = tl.program_id(0) % KIND.ROWS
    left -= slot
    if left > 0:
        row += slot
        begin += slot.to(tl.int64) * decoded(sizes.side.row) * KIND.UNIT
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        total = tl.full((1, WIDTH), 0, tl.float32)
        along = tl.full((1,), 0, tl.float32)
        for first in range(0, decoded(sizes.n_runs), RUNS):
            run = first + tl.arange(0, RUNS)
            inside = run < decoded(sizes.n_runs)
            rows = run.to(tl.int64) * decoded(sizes.side.n_rows) + row
            cells = rows[:, None] * KIND.D + column[None, :]
            x = tl.load(sums.runs + cells, mask=inside[:, None] & (column < KIND.D)[None, :], other=0.0)
            total += tl.sum(x, 0)[None, :]
            if KIND.NORMALIZE:
                along += tl.sum(tl.load(sums.alongs + rows, mask=inside, other=0.0), 0)
        store_gradients(sums, total, along, side, row, begin, left, sizes, 1, KIND)


@triton.jit(do_not_specialize=["sizes"], do_not_specialize_on_alignment=["pairs", "grads"])
def query_gradients(queries, contexts, tables, pairs, listed, grads, results, sums, sizes, KIND: tl.constexpr):
    """Gradients of a block of queries over `n_items` items of contexts from the first or, where LISTED, over its pairs.

    The best contexts in STEP of them are gathered at a time. Pair k in order stands in row order[k] of all that has a
    row for every pair; item i's are begins[i] to begins[i + 1].
    """
    ROWS: tl.constexpr = KIND.ROWS
    STEP: tl.constexpr = KIND.STEP
    WIDTH: tl.constexpr = KIND.WIDTH
    query, start, row, first, left = block_of(queries, tl.program_id(0), sizes, KIND)
    ahead = tl.arange(0, STEP * ROWS) // ROWS
    slot = tl.arange(0, STEP * ROWS) % ROWS
    place = (start + slot).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.full((ROWS, WIDTH), 0, tl.float32)
    along = tl.full((ROWS,), 0, tl.float32)
    begin, end = run_of(listed, query, decoded(sizes.n_items), sizes, left, KIND)
    if not KIND.LISTED:
        place += start_of(tables, query, sizes.index_query)
    for number in range(begin, end, STEP):
        inside = (number + ahead < end) & (slot < left)
        if KIND.LISTED:
            local = tl.load(listed.order + number + ahead, mask=inside, other=0)
            item = tl.load(pairs + 2 * local + KIND.CONTEXT_COLUMN)
            weight = tl.load(grads + local * decoded(sizes.grad_context))
        else:
            local = (number + ahead).to(tl.int64)
            item = decoded(sizes.first_item) + local
            weight = tl.load(
                grads + item * decoded(sizes.grad_context) + query * decoded(sizes.grad_query), mask=inside, other=0.0
            )
        cells = local * decoded(sizes.index_context) + place
        best = tl.load(results.indices + cells, mask=inside, other=-1)
        hits = best >= 0
        best = tl.maximum(best, 0).to(tl.int64)
        rows, begins, _ = item_rows(contexts, tl.where(inside, item, 0), sizes.others, KIND.UNIT)
        offsets = begins + best * decoded(sizes.others.row) * KIND.UNIT
        there = hits[:, None] & (column < KIND.D)[None, :]
        x = tl.load(contexts.features + offsets[:, None] + column[None, :], mask=there, other=0.0).to(tl.float32)
        weights = tl.where(hits, weight, 0.0)
        if KIND.WEIGHTED:
            weights *= tl.load(results.weights + cells, mask=hits, other=0.0)
        if KIND.NORMALIZE:
            share = weights * tl.load(results.maxima + cells, mask=hits, other=0.0)
            along += tl.sum(tl.reshape(share, (STEP, ROWS)), 0)
            weights *= tl.load(contexts.scales + rows + best)
        total += tl.sum(tl.reshape(weights[:, None] * x, (STEP, ROWS, WIDTH)), 0)
    if KIND.AVERAGE:
        count = (start + tl.maximum(left, 1)).to(tl.float32)
        total /= count
        along /= count
    leave(sums, total, along, queries, row, first, left, sizes, KIND)


@triton.jit
def taken_queries(
    total, along, best, weights, cells, start, rows, offsets, queries, results, KIND: tl.constexpr,
):  # fmt: skip
    """Adds some queries to the sums of the contexts that they take, and their similarities to `along`.

    Queries that take none of these contexts are not read.
    """
    column = tl.program_id(1) * KIND.WIDTH + tl.arange(0, KIND.WIDTH)
    hits = (best >= start) & (best < start + KIND.ROWS)
    there = hits[:, None] & (column < KIND.D)[None, :]
    x = tl.load(queries.features + offsets[:, None] + column[None, :], mask=there, other=0.0)
    takes = best[None, :] == (start + tl.arange(0, KIND.ROWS))[:, None]
    if KIND.WEIGHTED:
        weights = weights * tl.load(results.weights + cells, mask=hits, other=0.0)
    if KIND.NORMALIZE:
        values = tl.load(results.maxima + cells, mask=hits, other=0.0)
        along += tl.sum(tl.where(takes, (weights * values)[None, :], 0.0), 1)
        weights = weights * tl.load(queries.scales + rows)
    shares = tl.where(takes, weights[None, :], 0.0)
    if KIND.SPLIT:
        total = tl.dot(shares, x.to(tl.float32), total, input_precision=KIND.PRECISION)
    else:
        total = tl.dot(shares.to(x.dtype), x, total, input_precision=KIND.PRECISION)
    return total, along


@triton.jit(do_not_specialize=["sizes"], do_not_specialize_on_alignment=["pairs", "grads"])
def context_gradients(contexts, queries, tables, pairs, listed, grads, results, sums, sizes, KIND: tl.constexpr):
    """Gradients of a block of contexts over all `n_queries` queries or, where LISTED, those of the item's pairs."""
    ROWS: tl.constexpr = KIND.ROWS
    STEP: tl.constexpr = KIND.STEP
    WIDTH: tl.constexpr = KIND.WIDTH
    context, start, row, first, left = block_of(contexts, tl.program_id(0), sizes, KIND)
    total = tl.full((ROWS, WIDTH), 0, tl.float32)
    along = tl.full((ROWS,), 0, tl.float32)
    begin, end = run_of(listed, context, decoded(sizes.n_queries), sizes, left, KIND)
    if KIND.LISTED:
        for number in range(begin, end):
            local = tl.load(listed.order + number)
            item = tl.load(pairs + 2 * local + 1 - KIND.CONTEXT_COLUMN)
            query_row, query_begin, count = item_rows(queries, item, sizes.others, KIND.UNIT)
            weight = tl.load(grads + local * decoded(sizes.grad_context))
            if KIND.AVERAGE:
                weight /= tl.maximum(count, 1).to(tl.float32)
            for piece in range(0, count, STEP):
                place = piece + tl.arange(0, STEP)
                cells = local * decoded(sizes.index_context) + place
                best = tl.load(results.indices + cells, mask=place < count, other=-1)
                within = tl.minimum(place, count - 1).to(tl.int64)
                offsets = query_begin + within * decoded(sizes.others.row) * KIND.UNIT
                weights = tl.full((STEP,), weight, tl.float32)
                total, along = taken_queries(
                    total, along, best, weights, cells, start, query_row + within, offsets, queries, results, KIND
                )  # fmt: skip
    else:
        for piece in range(begin, end, STEP):
            number = piece + tl.arange(0, STEP)
            inside = number < end
            slots = decoded(sizes.index_query)
            from_table = tl.load(tables.holders + number, mask=inside & (number * 0 == slots), other=0)
            item = tl.where(number * 0 == slots, from_table, tl.where(inside, number, 0) // tl.maximum(slots, 1)).to(
                tl.int64
            )
            rows, begins, count = item_rows(queries, item, sizes.others, KIND.UNIT)
            place = number - start_of(tables, item, sizes.index_query)
            inside = inside & (place < count)
            place = tl.where(inside, place, 0)
            offsets = begins + place * decoded(sizes.others.row) * KIND.UNIT
            cells = (context - decoded(sizes.first_item)) * decoded(sizes.index_context) + number
            best = tl.load(results.indices + cells, mask=inside, other=-1)
            weights = tl.load(grads + context * decoded(sizes.grad_context) + item * decoded(sizes.grad_query))
            if KIND.AVERAGE:
                weights /= tl.maximum(count, 1).to(tl.float32)
            total, along = taken_queries(
                total, along, best, weights, cells, start, rows + place, offsets, queries, results, KIND
            )  # fmt: skip
    leave(sums, total, along, contexts, row, first, left, sizes, KIND)
