"""Triton kernels of stacked cross attention's scores where items are too long for a tile on the chip."""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_attention import MOST
from crossret_kernels.cross_attention.triton_long_attention import (
    attend,
    extent,
    item_at,
    row_scales,
)
from crossret_kernels.triton_tiles import bounded, grouped, product, row_offsets, tile_items


@triton.jit(do_not_specialize=["first_tile"])
def item_gram_matrices(
    contexts, context_norms, context_items, context_counts, context_firsts, context_lengths,
    context_per_item, context_item_stride, context_row_stride, grams, gram_columns, first_tile, size, D,
    NORMALIZE: tl.constexpr, ITEMS: tl.constexpr, M: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    MAIN: tl.constexpr,
):  # fmt: skip
    """(tiles, size, gram_columns): of every slot the products of its row with those of its own item, from its first on.

    Program (tile, b) makes block b of M rows of every item of a tile.
    """
    local = tl.program_id(0).to(tl.int64)
    tile = first_tile + local
    grams += local * size * gram_columns
    row = tl.program_id(1) * M + tl.arange(0, M)
    n_items, _ = extent(context_items, context_counts, context_lengths, tile, ITEMS, False)
    first = 0
    for place in range(n_items):
        item, count = item_at(context_items, context_counts, context_lengths, tile, place, ITEMS, False)
        if tl.program_id(1) * M < count:
            begin = tl.load(context_firsts + item)
            rows = begin + tl.minimum(row, count - 1)
            offsets = row_offsets(rows, context_per_item, context_item_stride, context_row_stride)
            scales = row_scales(tl.load(context_norms + rows), NORMALIZE)
            for j in range(0, count, M):
                other = j + tl.arange(0, M)
                others = begin + tl.minimum(other, count - 1)
                other_offsets = row_offsets(others, context_per_item, context_item_stride, context_row_stride)
                other_scales = row_scales(tl.load(context_norms + others), NORMALIZE)
                block = product(contexts, offsets, contexts, other_offsets, D, M, M, K, EVEN, MAIN)
                block = bounded(block * scales[:, None] * other_scales[None, :], MOST)
                tl.store(
                    grams + (first + row)[:, None].to(tl.int64) * gram_columns + other[None, :],
                    block, mask=(row < count)[:, None] & (other < count)[None, :],
                )  # fmt: skip
        first += count


@triton.jit
def pooled_relevances(
    relevances, columns, n_items, first, count, lambda_lse,
    POOLING: tl.constexpr, ITEMS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Scores (ITEMS,) of an item of queries with the unit's items of contexts: SCAN Eqs. 5–8; NaN where one is."""
    place = tl.arange(0, ITEMS)[:, None]
    top = tl.full((ITEMS,), float("-inf"), tl.float32)
    total = tl.zeros((ITEMS,), tl.float32)
    broken = tl.zeros((ITEMS,), tl.float32)
    for j in range(0, count, STEP):
        inside = (j + tl.arange(0, STEP) < count)[None, :] & (place < n_items)
        column = (first + j + tl.arange(0, STEP))[None, :]
        r = tl.load(relevances + place * columns + column, mask=inside, other=0.0)
        broken += tl.sum(tl.where(r == r, 0.0, 1.0), 1)
        r = tl.where(r == r, r, 0.0)
        total += tl.sum(r, 1)
        top = tl.maximum(top, tl.max(tl.where(inside, r, float("-inf")), 1))
    if POOLING == "lse":
        total = tl.zeros((ITEMS,), tl.float32)
        for j in range(0, count, STEP):
            inside = (j + tl.arange(0, STEP) < count)[None, :] & (place < n_items)
            column = (first + j + tl.arange(0, STEP))[None, :]
            r = tl.load(relevances + place * columns + column, mask=inside, other=0.0)
            r = tl.where(r == r, r, 0.0)
            total += tl.sum(tl.exp(tl.where(inside, lambda_lse * (r - top[:, None]), float("-inf"))), 1)
        scores = tl.log(tl.where(total > 0, total, 1.0)) / lambda_lse + tl.where(total > 0, top, 0.0)
    elif POOLING == "max":
        scores = top
    else:
        scores = total / count.to(tl.float32) if POOLING == "avg" else total
    return tl.where(broken > 0, float("nan"), scores)


@triton.jit(
    do_not_specialize=[
        "score_context_stride",
        "score_query_stride",
        "first_context_tile",
        "n_context_tiles",
        "n_query_tiles",
        "n_units",
    ]
)
def long_forward(
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_lengths, query_per_item, query_item_stride, query_row_stride,
    pairs, grams, scores, score_context_stride, score_query_stride, cells, statistics, relevances,
    first_context_tile, n_context_tiles, n_query_tiles, n_units, rows, columns, gram_columns,
    D, slope, lambda_softmax, lambda_lse,
    CONTEXT_COLUMN: tl.constexpr, WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, VECTORS: tl.constexpr, POOLING: tl.constexpr, ITEMS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Scores of units, one program's after the other in the same cells: all tiles of a run by all, or listed pairs."""
    program = tl.program_id(0).to(tl.int64)
    cells += program * rows * columns
    statistics += program * rows * 2 * ITEMS
    relevances += program * ITEMS * columns
    for unit in range(program, n_units, tl.num_programs(0)):
        if WHOLE:
            local_tile = 0
            context_tile = tl.load(pairs + 2 * unit + CONTEXT_COLUMN)
            query_tile = tl.load(pairs + 2 * unit + 1 - CONTEXT_COLUMN)
        else:
            local_tile, query_tile = grouped(unit, n_context_tiles, n_query_tiles, 8)
            context_tile = first_context_tile + local_tile
        n_context_items, n_rows = extent(context_items, context_counts, context_lengths, context_tile, ITEMS, WHOLE)
        n_query_items, n_columns = extent(query_items, query_counts, query_lengths, query_tile, ITEMS, WHOLE)
        attend(
            cells, cells, cells, columns, statistics, relevances,
            contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
            context_lengths, context_per_item, context_item_stride, context_row_stride, context_tile, rows,
            n_context_items, n_rows,
            queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts, query_lengths,
            query_per_item, query_item_stride, query_row_stride, query_tile, n_query_items, n_columns,
            grams, local_tile, gram_columns, D, slope, lambda_softmax,
            WHOLE, NORMALIZE, CLIPS, NORM, SHIFTED, VECTORS, False, ITEMS, M, N, K, STEP, WIDTH, EVEN, MAIN, FINE,
        )  # fmt: skip
        places = tl.arange(0, ITEMS)
        context_item, _ = tile_items(context_items, context_counts, context_lengths, context_tile, ITEMS, WHOLE)
        first = 0
        for place in range(n_query_items):
            item, count = item_at(query_items, query_counts, query_lengths, query_tile, place, ITEMS, WHOLE)
            values = pooled_relevances(
                relevances, columns, n_context_items, first, count, lambda_lse, POOLING, ITEMS, STEP
            )
            if WHOLE:
                targets = unit + places.to(tl.int64)
            else:
                targets = context_item * score_context_stride + item * score_query_stride
            tl.store(scores + targets, values, mask=context_item >= 0)
            first += count
        tl.debug_barrier()
