"""Gradients of Sum-Max's soft maxima in Triton: every similarity has one.

Similarities of a block of rows with the other side's are made again, tile by tile, and no tile outlives its step.
Programs share out the columns of gradients, and each makes them anew.
"""

from __future__ import annotations

import triton
import triton.language as tl

from crossret_kernels.gpu.triton_tiles import decoded, product
from crossret_kernels.maxsim.triton.backward import block_of, leave, run_of
from crossret_kernels.maxsim.triton.forward import start_of
from crossret_kernels.maxsim.triton.maxima import exponential
from crossret_kernels.maxsim.triton.rows import item_rows


@triton.jit
def scaled_rows(side, row, begin, place, count, row_stride, KIND: tl.constexpr):
    """(Offsets, scales) of rows of an item at these places; behind its end the last one's, and 0."""
    within = tl.minimum(place, tl.maximum(count - 1, 0)).to(tl.int64)
    scales = tl.full(place.shape, 1.0, tl.float32)
    if KIND.NORMALIZE:
        scales = tl.load(side.scales + row + within, mask=place < count, other=0.0)
    return begin + within * decoded(row_stride) * KIND.UNIT, scales


@triton.jit(do_not_specialize=["sizes"], do_not_specialize_on_alignment=["pairs", "grads"])
def soft_gradients(side, others, tables, pairs, listed, grads, results, sums, sizes, KIND: tl.constexpr):
    """Gradients of a block of contexts over all items of queries, or of queries over `n_items` of contexts from the
    first or, where LISTED, over the item's pairs, in the order that `query_gradients` says.
    """
    ROWS: tl.constexpr = KIND.ROWS
    STEP: tl.constexpr = KIND.STEP
    WIDTH: tl.constexpr = KIND.WIDTH
    OTHERS_COLUMN: tl.constexpr = 1 - KIND.CONTEXT_COLUMN if KIND.OF_CONTEXTS else KIND.CONTEXT_COLUMN
    item, start, row, first, left = block_of(side, tl.program_id(0), sizes, KIND)
    slot = tl.arange(0, ROWS)
    item_offsets, item_scales = scaled_rows(side, row, first, slot, left, sizes.side.row, KIND)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.full((ROWS, WIDTH), 0, tl.float32)
    along = tl.full((ROWS,), 0, tl.float32)
    n_others = decoded(sizes.n_queries) if KIND.OF_CONTEXTS else decoded(sizes.n_items)
    begin, end = run_of(listed, item, n_others, sizes, left, KIND)
    for number in range(begin, end):
        if KIND.LISTED:
            local = tl.load(listed.order + number)
            other = tl.load(pairs + 2 * local + OTHERS_COLUMN)
            weight = tl.load(grads + local * decoded(sizes.grad_context))
            cells = local * decoded(sizes.index_context)
        else:
            other = item * 0 + number
            if not KIND.OF_CONTEXTS:
                other += decoded(sizes.first_item)
            context = item if KIND.OF_CONTEXTS else other
            query = other if KIND.OF_CONTEXTS else item
            weight = tl.load(grads + context * decoded(sizes.grad_context) + query * decoded(sizes.grad_query))
            cells = (context - decoded(sizes.first_item)) * decoded(sizes.index_context)
            cells += start_of(tables, query, sizes.index_query)
        other_row, other_begin, count = item_rows(others, other, sizes.others, KIND.UNIT)
        if KIND.AVERAGE:
            n_queries = count if KIND.OF_CONTEXTS else start + left
            weight /= tl.maximum(n_queries, 1).to(tl.float32)
        for piece in range(0, count, STEP):
            place = piece + tl.arange(0, STEP)
            there = place < count
            offsets, scales = scaled_rows(others, other_row, other_begin, place, count, sizes.others.row, KIND)
            if KIND.OF_CONTEXTS:
                shares, s = similarity_gradients(
                    others, offsets, scales, there, cells + place, side, item_offsets, item_scales, results, KIND
                )  # fmt: skip
                shares = tl.trans(tl.where(there[:, None], shares * weight, 0.0))
                s = tl.trans(s)
            else:
                shares, s = similarity_gradients(
                    side, item_offsets, item_scales, slot < left, cells + start + slot, others, offsets, scales,
                    results, KIND,
                )  # fmt: skip
                shares = tl.where(there[None, :], shares * weight, 0.0)
            if KIND.NORMALIZE:
                along += tl.sum(shares * s, 1)
                shares *= scales[None, :]
            inside = there[:, None] & (column < KIND.D)[None, :]
            x = tl.load(others.features + offsets[:, None] + column[None, :], mask=inside, other=0.0)
            if KIND.SPLIT:
                x = x.to(tl.float32)
            total = tl.dot(shares.to(x.dtype), x, total, input_precision=KIND.PRECISION)
    leave(sums, total, along, side, row, first, left, sizes, KIND)


@triton.jit
def similarity_gradients(
    queries, query_offsets, query_scales, there, cells, contexts, context_offsets, context_scales, results,
    KIND: tl.constexpr,
):  # fmt: skip
    """(∂score / ∂s of a tile of queries and contexts, but for the average's count; the similarities s)."""
    M: tl.constexpr = query_offsets.shape[0]
    N: tl.constexpr = context_offsets.shape[0]
    PRECISION: tl.constexpr = KIND.PRECISION
    s = product(
        queries.features, query_offsets, contexts.features, context_offsets, KIND.D, M, N, KIND.K,
        KIND.D % KIND.K == 0, PRECISION,
    )  # fmt: skip
    if KIND.NORMALIZE:
        s = s * context_scales[None, :] * query_scales[:, None]
    greatest = tl.load(results.indices + cells, mask=there, other=0.0)[:, None]
    weights = tl.load(results.weights + cells, mask=there, other=0.0)[:, None]
    slopes = tl.where(s > 0, 1.0, results.slope)
    # A product in another tile may be rounded to more than the greatest.
    x = tl.minimum(s * slopes, greatest, propagate_nan=tl.PropagateNan.ALL)
    return weights * slopes * exponential(x, greatest, results.temperature), s
