"""Triton kernel of the gradients of similarities where items are too long for a tile on the chip (kernels.md §2).

A unit is attended to again. Its gradients then take the place of its Gram matrices times weights, phase by phase: of
logits, of normalised similarities, of similarities.
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_attention import EPS, MOST, TINY, clip, least_length
from crossret_kernels.cross_attention.triton_backward import MOST_FACTOR, MOST_GRADIENT
from crossret_kernels.cross_attention.triton_long_attention import (
    attend,
    extent,
    in_range,
    item_at,
    row_scales,
)
from crossret_kernels.triton_tiles import block_slots, bounded, inverse, tile_items


@triton.jit
def score_places(
    context_items, context_counts, context_lengths, context_tile, query_item, pair, context_stride, query_stride,
    ITEMS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(where the scores of an item of queries with a tile's contexts are, which of them there are), (ITEMS,)."""
    items, _ = tile_items(context_items, context_counts, context_lengths, context_tile, ITEMS, WHOLE)
    places = items * 0 + pair * context_stride if WHOLE else items * context_stride + query_item * query_stride
    return places, items >= 0


@triton.jit
def block_relevances(relevances, columns, n_items, first, count, start, ITEMS: tl.constexpr, STEP: tl.constexpr):
    """(cos(q, a) as it is stored, which are there, where) of STEP queries of an item from `start` on."""
    place = tl.arange(0, ITEMS)[:, None]
    column = start + tl.arange(0, STEP)[None, :]
    inside = (place < n_items) & (column < count)
    cells = relevances + place * columns + first + column
    return tl.load(cells, mask=inside, other=0.0), inside, cells


@triton.jit
def store_factors(
    relevances, factors, columns, n_context_items, first, count, grads, norms, lambda_lse,
    NORMALIZE: tl.constexpr, POOLING: tl.constexpr, ITEMS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stores what the scores' gradients (ITEMS,) of an item of queries make of its queries.

    ∂L/∂(q·a), NaN where a pair is broken, takes the place of its ‖q‖‖a‖ and twice ∂L/∂‖a‖² that of its ‖a‖², as
    `attend` leaves them; `factors` are what the query's own row is multiplied by in its gradient, `norms` the item's.
    """
    fine = tl.abs(grads) < MOST
    spoilt = tl.where(fine, 0.0, 1.0)
    top = tl.full((ITEMS,), float("-inf"), tl.float32)
    best = tl.zeros((ITEMS,), tl.int32)
    for start in range(0, count, STEP):
        r, inside, _cells = block_relevances(relevances, columns, n_context_items, first, count, start, ITEMS, STEP)
        spoilt += tl.sum(tl.where(r == r, 0.0, 1.0), 1)
        r = tl.where(inside, in_range(r), float("-inf"))
        block_top = tl.max(r, 1)
        place = start + tl.arange(0, STEP)[None, :]
        block_best = tl.min(tl.where(inside & (r == block_top[:, None]), place, count), 1)
        best = tl.where(block_top > top, block_best, best)
        top = tl.maximum(top, block_top)
    top = tl.where(tl.arange(0, ITEMS) < n_context_items, top, 0.0)
    own = tl.where(fine, grads, 0.0)
    if POOLING == "lse":
        total = tl.zeros((ITEMS,), tl.float32)
        for start in range(0, count, STEP):
            r, inside, _cells = block_relevances(relevances, columns, n_context_items, first, count, start, ITEMS, STEP)
            exponents = lambda_lse * (in_range(r) - top[:, None])
            total += tl.sum(tl.exp(tl.where(inside, exponents, float("-inf"))), 1)
        own = own * inverse(total)
    elif POOLING == "avg":
        own = own / count.to(tl.float32)
    spoilt = tl.where(grads == 0, 0.0, spoilt)[:, None] > 0
    for start in range(0, count, STEP):
        r, inside, cells = block_relevances(relevances, columns, n_context_items, first, count, start, ITEMS, STEP)
        r = in_range(r)
        totals = tl.load(cells + ITEMS * columns, mask=inside, other=0.0)
        squares = tl.load(cells + 2 * ITEMS * columns, mask=inside, other=0.0)
        lengths = tl.load(cells + 3 * ITEMS * columns, mask=inside, other=0.0)
        if POOLING == "lse":
            gradients = own[:, None] * tl.exp(tl.where(inside, lambda_lse * (r - top[:, None]), float("-inf")))
        elif POOLING == "max":
            place = start + tl.arange(0, STEP)[None, :]
            gradients = tl.where(place == best[:, None], own[:, None], 0.0)
        else:
            gradients = own[:, None] + 0 * r
        # ∂L/∂(Σp), which the cosine's floor brings, is the same for all contexts of a query: the softmax drops it.
        pull = tl.where(inside & (lengths != 0) & (lengths >= totals * EPS), -gradients * r, 0.0)
        of_products = bounded(tl.where(lengths != 0, gradients / least_length(lengths, totals), 0.0), MOST_FACTOR)
        of_squares = bounded(tl.where(squares > 0, pull / tl.maximum(squares, TINY), 0.0), MOST_FACTOR)
        tl.debug_barrier()  # so few cells may lie in several threads, which have read them all by now
        tl.store(cells + 2 * ITEMS * columns, of_squares, mask=inside)
        tl.store(cells + 3 * ITEMS * columns, tl.where(spoilt, float("nan"), of_products), mask=inside)
        column = first + start + tl.arange(0, STEP)
        taken = start + tl.arange(0, STEP) < count
        if NORMALIZE:
            factor = tl.zeros((STEP,), tl.float32)  # along the unit row, which the norm takes out
        else:
            lengths = tl.load(norms + start + tl.arange(0, STEP), mask=taken, other=0.0)
            shares = 1.0 / tl.maximum(lengths, TINY)
            factor = tl.sum(pull, 0) * shares * shares  # the square itself may be out of range
            factor = tl.where(tl.max((spoilt & inside).to(tl.int32), 0) > 0, float("nan"), factor)
        tl.store(factors + column, factor, mask=taken)


@triton.jit
def weight_gradients(cells, weights, gram_weights, places, inside, of_products, of_squares):
    """(p, ∂L/∂p) of these places."""
    p = tl.load(weights + places, mask=inside, other=0.0)
    s = in_range(tl.load(cells + places, mask=inside, other=0.0))
    gp = tl.load(gram_weights + places, mask=inside, other=0.0)
    return p, bounded(of_products[None, :] * s + of_squares[None, :] * gp, MOST_GRADIENT)


@triton.jit
def logit_gradients(
    gradients, weights, cells, columns, sums, first, count, column, inside_columns, lambda_softmax,
    ITEMS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stores λ ∂L/∂logits, which is ∂L/∂n, of an item of contexts and a block of queries in the place of its G p.

    `sums` are of the item's queries: Σp and what `store_factors` left.
    """
    totals = tl.load(sums + ITEMS * columns + column, mask=inside_columns, other=0.0)
    of_squares = tl.load(sums + 2 * ITEMS * columns + column, mask=inside_columns, other=0.0)
    of_products = tl.load(sums + 3 * ITEMS * columns + column, mask=inside_columns, other=0.0)
    mean = totals * 0
    for i in range(0, count, STEP):
        row = i + tl.arange(0, STEP)
        places = (first + row)[:, None] * columns + column[None, :]
        inside = (row < count)[:, None] & inside_columns[None, :]
        p, of_weights = weight_gradients(cells, weights, gradients, places, inside, of_products, of_squares)
        mean += tl.sum(p * of_weights, 0)
    # The softmax takes out the mean. It is zero but for rounding, which λ and long features would blow up.
    mean = mean * inverse(totals)
    for i in range(0, count, STEP):
        row = i + tl.arange(0, STEP)
        places = (first + row)[:, None] * columns + column[None, :]
        inside = (row < count)[:, None] & inside_columns[None, :]
        p, of_weights = weight_gradients(cells, weights, gradients, places, inside, of_products, of_squares)
        of_logits = p * (of_weights - mean[None, :])
        tl.store(gradients + places, bounded(lambda_softmax * of_logits, MOST_GRADIENT), mask=inside)


@triton.jit
def row_block(cells, gradients, columns, row, column, inside, slope, CLIPS: tl.constexpr):
    """(s, clipped, ∂L/∂n) of these rows and columns."""
    places = row[:, None] * columns + column[None, :]
    s = in_range(tl.load(cells + places, mask=inside, other=0.0))
    return s, clip(s, slope, CLIPS), tl.load(gradients + places, mask=inside, other=0.0)


@triton.jit
def similarity_gradients(
    gradients, weights, cells, columns, statistics, sums, row, owners, scales, place, first, count, norms, slope,
    NORMALIZE: tl.constexpr, CLIPS: tl.constexpr, NORM: tl.constexpr,
    ITEMS: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stores ∂L/∂(product) of M rows and the item of queries at a place of its tile, in the place of ∂L/∂n.

    `owners` and `scales` are of the rows, `norms` of the item's queries.
    """
    known = (owners >= 0)[:, None]
    along = tl.zeros((M,), tl.float32)
    if NORM != "none":
        one = tl.load(statistics + row * 2 * ITEMS + place)
        other = tl.load(statistics + row * 2 * ITEMS + ITEMS + place)
        for start in range(0, count, STEP):
            inside = known & (start + tl.arange(0, STEP) < count)[None, :]
            column = first + start + tl.arange(0, STEP)
            _s, x, g = row_block(cells, gradients, columns, row, column, inside, slope, CLIPS)
            if NORM == "softmax":
                x = tl.exp(tl.where(inside, x - one[:, None], float("-inf"))) * other[:, None]
            along += tl.sum(x * g, 1)
        if NORM != "softmax":
            along = along * one * one
            along = bounded(along * other if NORM == "l2norm" else along, MOST_FACTOR)
    for start in range(0, count, STEP):
        taken = start + tl.arange(0, STEP) < count
        inside = known & taken[None, :]
        column = first + start + tl.arange(0, STEP)
        s, x, g = row_block(cells, gradients, columns, row, column, inside, slope, CLIPS)
        if NORM == "softmax":
            x = tl.exp(tl.where(inside, x - one[:, None], float("-inf"))) * other[:, None]
            g = x * (g - along[:, None])
        elif NORM == "l1norm":
            g = one[:, None] * g - along[:, None] * ((x > 0).to(tl.float32) - (x < 0).to(tl.float32))
        elif NORM == "l2norm":
            g = one[:, None] * g - along[:, None] * x
        if CLIPS:
            g = g * tl.where(s > 0, 1.0, slope)
        places = row[:, None] * columns + column[None, :]
        p = tl.load(weights + places, mask=inside, other=0.0)
        of_products = tl.load(
            sums + (3 * ITEMS + tl.maximum(owners, 0))[:, None] * columns + column[None, :], mask=inside, other=0.0
        )
        g += of_products * p
        if NORMALIZE:
            lengths = tl.load(norms + start + tl.arange(0, STEP), mask=taken, other=0.0)
            g = g * scales[:, None] * inverse(lengths)[None, :]
        tl.store(gradients + places, g, mask=inside)


@triton.jit(
    do_not_specialize=[
        "score_context_stride",
        "score_query_stride",
        "first_context_tile",
        "first_query_tile",
        "n_query_tiles",
        "first_pair",
    ]
)
def long_backward(
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_lengths, query_per_item, query_item_stride, query_row_stride,
    pairs, order, grams, grad_scores, score_context_stride, score_query_stride,
    cells, weights, gradients, statistics, relevances, factors, used,
    first_context_tile, first_query_tile, n_query_tiles, first_pair, rows, columns, gram_columns,
    D, slope, lambda_softmax, lambda_lse,
    CONTEXT_COLUMN: tl.constexpr, WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, VECTORS: tl.constexpr, POOLING: tl.constexpr, ITEMS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Gradients of the similarities of one unit: of a rectangle of tiles by n_query_tiles of queries, or of the pairs
    from `first_pair` on in `order`.

    `used` gets how many columns there are of a unit; of one without a gradient 0, and nothing else is stored.
    """
    unit = tl.program_id(0).to(tl.int64)
    cells += unit * rows * columns
    weights += unit * rows * columns
    gradients += unit * rows * columns
    statistics += unit * rows * 2 * ITEMS
    relevances += unit * 4 * ITEMS * columns
    factors += unit * columns
    if WHOLE:
        pair = tl.load(order + first_pair + unit)
        local_tile = unit * 0
        context_tile = tl.load(pairs + 2 * pair + CONTEXT_COLUMN)
        query_tile = tl.load(pairs + 2 * pair + 1 - CONTEXT_COLUMN)
    else:
        pair = unit * 0
        local_tile = unit // n_query_tiles
        context_tile = first_context_tile + local_tile
        query_tile = first_query_tile + unit % n_query_tiles
    n_context_items, n_rows = extent(context_items, context_counts, context_lengths, context_tile, ITEMS, WHOLE)
    n_query_items, n_columns = extent(query_items, query_counts, query_lengths, query_tile, ITEMS, WHOLE)
    some = tl.zeros((ITEMS,), tl.int32)
    for place in range(n_query_items):
        item, _count = item_at(query_items, query_counts, query_lengths, query_tile, place, ITEMS, WHOLE)
        targets, known = score_places(
            context_items, context_counts, context_lengths, context_tile, item, pair, score_context_stride,
            score_query_stride, ITEMS, WHOLE,
        )  # fmt: skip
        some += (tl.load(grad_scores + targets, mask=known, other=0.0) != 0).to(tl.int32)
    tl.store(used + unit, tl.where(tl.max(some) > 0, n_columns, 0))
    if tl.max(some) > 0:  # of a hardest-negative loss few pairs have a gradient
        attend(
            cells, weights, gradients, columns, statistics, relevances,
            contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
            context_lengths, context_per_item, context_item_stride, context_row_stride, context_tile, rows,
            n_context_items, n_rows,
            queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts, query_lengths,
            query_per_item, query_item_stride, query_row_stride, query_tile, n_query_items, n_columns,
            grams, local_tile, gram_columns, D, slope, lambda_softmax,
            WHOLE, NORMALIZE, CLIPS, NORM, SHIFTED, VECTORS, True, ITEMS, M, N, K, STEP, WIDTH, EVEN, MAIN, FINE,
        )  # fmt: skip
        first = 0
        for place in range(n_query_items):
            item, count = item_at(query_items, query_counts, query_lengths, query_tile, place, ITEMS, WHOLE)
            targets, known = score_places(
                context_items, context_counts, context_lengths, context_tile, item, pair, score_context_stride,
                score_query_stride, ITEMS, WHOLE,
            )  # fmt: skip
            grads = tl.load(grad_scores + targets, mask=known, other=0.0).to(tl.float32)
            store_factors(
                relevances, factors, columns, n_context_items, first, count, grads,
                query_norms + tl.load(query_firsts + item), lambda_lse, NORMALIZE, POOLING, ITEMS, STEP,
            )  # fmt: skip
            first += count
        tl.debug_barrier()
        first = 0
        for place in range(n_context_items):
            item, count = item_at(context_items, context_counts, context_lengths, context_tile, place, ITEMS, WHOLE)
            for start in range(0, n_columns, N):
                column = start + tl.arange(0, N)
                logit_gradients(
                    gradients, weights, cells, columns, relevances + place * columns, first, count, column,
                    column < n_columns, lambda_softmax, ITEMS, STEP,
                )  # fmt: skip
            first += count
        tl.debug_barrier()
        for i in range(0, n_rows, M):
            c_rows, c_owners = block_slots(
                context_rows, context_owners, context_firsts, context_lengths, context_tile, rows, i, M, WHOLE
            )
            scales = row_scales(tl.load(context_norms + c_rows), NORMALIZE)
            first = 0
            for place in range(n_query_items):
                item, count = item_at(query_items, query_counts, query_lengths, query_tile, place, ITEMS, WHOLE)
                similarity_gradients(
                    gradients, weights, cells, columns, statistics, relevances, i + tl.arange(0, M), c_owners, scales,
                    place, first, count, query_norms + tl.load(query_firsts + item), slope,
                    NORMALIZE, CLIPS, NORM, ITEMS, M, STEP,
                )  # fmt: skip
                first += count
