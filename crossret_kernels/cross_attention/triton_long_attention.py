"""Attention of items of any length in Triton: a tile of similarities in memory, walked over in blocks (kernels.md §1).

A unit is a tile of contexts and one of queries, or a listed pair. Its similarities are cells (rows, columns) in
memory, which its program alone writes and reads: what one phase leaves, the next reads behind a barrier. Items follow
one another in a tile. Nothing of one is multiplied with another's, so that what is not finite stays in its pairs by
itself; a similarity out of range is marked by NaN.
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_attention import (
    CANCELLED,
    EPS,
    LOG2_E,
    MOST,
    MOST_LENGTH,
    MOST_LOGIT,
    clip,
    least_length,
)
from crossret_kernels.triton_tiles import block_slots, bounded, inverse, product, row_offsets, tile_items


@triton.jit
def extent(items_table, counts_table, lengths, tile, SEGMENTS: tl.constexpr, WHOLE: tl.constexpr):
    """(items, rows) that a tile has."""
    items, counts = tile_items(items_table, counts_table, lengths, tile, SEGMENTS, WHOLE)
    return tl.sum((items >= 0).to(tl.int32)), tl.sum(counts)


@triton.jit
def item_at(items_table, counts_table, lengths, tile, place, SEGMENTS: tl.constexpr, WHOLE: tl.constexpr):
    """(item, its rows) at a place of a tile."""
    if WHOLE:
        item = tile
        count = tl.load(lengths + tile)
    else:
        item = tl.load(items_table + tile * SEGMENTS + place)
        count = tl.load(counts_table + tile * SEGMENTS + place)
    return item.to(tl.int64), count


@triton.jit
def row_scales(norms, NORMALIZE: tl.constexpr):
    """What rows of these norms are multiplied by."""
    return inverse(norms) if NORMALIZE else norms * 0 + 1.0


@triton.jit
def unit_similarities(
    cells, columns,
    contexts, context_norms, context_rows, context_owners, context_firsts, context_lengths,
    context_per_item, context_item_stride, context_row_stride, context_tile, context_size, n_rows,
    queries, query_norms, query_rows, query_owners, query_firsts, query_lengths,
    query_per_item, query_item_stride, query_row_stride, query_tile, query_size, n_columns, D,
    NORMALIZE: tl.constexpr, WHOLE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """Stores the unit's similarities in blocks of M by N, NaN where they are out of range; in empty slots anything."""
    for i in range(0, n_rows, M):
        c_rows, _c_owners = block_slots(
            context_rows, context_owners, context_firsts, context_lengths, context_tile, context_size, i, M, WHOLE
        )
        c_offsets = row_offsets(c_rows, context_per_item, context_item_stride, context_row_stride)
        c_norms = tl.load(context_norms + c_rows)
        c_scales = row_scales(c_norms, NORMALIZE)
        for j in range(0, n_columns, N):
            q_rows, _q_owners = block_slots(
                query_rows, query_owners, query_firsts, query_lengths, query_tile, query_size, j, N, WHOLE
            )
            q_offsets = row_offsets(q_rows, query_per_item, query_item_stride, query_row_stride)
            s = product(contexts, c_offsets, queries, q_offsets, D, M, N, K, EVEN, MAIN)
            if NORMALIZE:
                s = s * c_scales[:, None] * inverse(tl.load(query_norms + q_rows))[None, :]
            fine = (tl.abs(s) < MOST) & (c_norms * c_scales < MOST_LENGTH)[:, None]
            places = (i + tl.arange(0, M))[:, None] * columns + j + tl.arange(0, N)[None, :]
            tl.store(cells + places, tl.where(fine, s, float("nan")))


@triton.jit
def in_range(s):
    """Similarities, 0 where they are marked."""
    return tl.where(s == s, s, 0.0)


@triton.jit
def unit_statistics(
    statistics, cells, columns, n_rows, query_items, query_counts, query_lengths, query_tile, n_query_items, slope,
    CLIPS: tl.constexpr, NORM: tl.constexpr, WHOLE: tl.constexpr,
    ITEMS: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stores of every context and item of queries what `normalised` takes: (rows, 2, ITEMS).

    Of softmax the greatest similarity and 1 / Σ; of other norms 1 / (norm + ε) and 1 / norm.
    """
    for i in range(0, n_rows, M):
        row = i + tl.arange(0, M)
        first = 0
        for place in range(n_query_items):
            _, count = item_at(query_items, query_counts, query_lengths, query_tile, place, ITEMS, WHOLE)
            top = tl.full((M,), float("-inf"), tl.float32)
            total = tl.zeros((M,), tl.float32)
            for j in range(0, count, STEP):
                inside = (j + tl.arange(0, STEP) < count)[None, :]
                column = (first + j + tl.arange(0, STEP))[None, :]
                x = clip(
                    in_range(tl.load(cells + row[:, None] * columns + column, mask=inside, other=0.0)), slope, CLIPS
                )
                if NORM == "softmax":
                    best = tl.maximum(top, tl.max(tl.where(inside, x, float("-inf")), 1))
                    e = tl.exp2(tl.where(inside, (x - best[:, None]) * LOG2_E, float("-inf")))
                    total = total * tl.exp2((top - best) * LOG2_E) + tl.sum(e, 1)
                    top = best
                else:
                    total += tl.sum(tl.abs(x) if NORM == "l1norm" else x * x, 1)
            if NORM == "softmax":
                one = top
                other = inverse(total)
            else:
                norms = total if NORM == "l1norm" else tl.sqrt(total)
                one = tl.where(norms != 0, 1.0 / (norms + EPS), 0.0)
                other = inverse(norms)
            tl.store(statistics + row * 2 * ITEMS + place, one)
            tl.store(statistics + row * 2 * ITEMS + ITEMS + place, other)
            first += count


@triton.jit
def normalised(x, statistics, row, owners, inside, NORM: tl.constexpr, ITEMS: tl.constexpr):
    """Clipped similarities of these rows (R,) and of columns of these owners (C,), normalised along queries."""
    if NORM == "none":
        return x
    own = statistics + (row * 2 * ITEMS)[:, None] + tl.maximum(owners, 0)[None, :]
    one = tl.load(own, mask=inside, other=0.0)
    if NORM == "softmax":
        return tl.exp2((x - one) * LOG2_E) * tl.load(own + ITEMS, mask=inside, other=0.0)
    return x * one


@triton.jit
def item_logits(
    cells, columns, statistics, row, column, owners, inside, slope, lambda_softmax,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """(similarities as they are stored, 0 where there is none; λn): of these rows and columns."""
    s = tl.load(cells + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    n = normalised(clip(in_range(s), slope, CLIPS), statistics, row, owners, inside, NORM, ITEMS)
    logits = lambda_softmax * n
    return s, bounded(logits, MOST_LOGIT) if SHIFTED else logits


@triton.jit
def store_weights(
    weights, cells, columns, statistics, norms, first, count, column, owners, slope, lambda_softmax,
    NORMALIZE: tl.constexpr, CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr,
    ITEMS: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Stores p = exp(λn), up to a factor, of one item of contexts and N queries; returns sums over the contexts (N,):
    of p s, of p, of (p ‖c‖)², and of similarities out of range.

    `norms` are of the item's contexts, from its first on. The weights may take the similarities' place.
    """
    taken = (owners >= 0)[None, :]
    top = tl.full((N,), float("-inf"), tl.float32)
    if SHIFTED:
        for i in range(0, count, STEP):
            row = i + tl.arange(0, STEP)
            inside = (row < count)[:, None] & taken
            _, logits = item_logits(
                cells, columns, statistics, first + row, column, owners, inside, slope, lambda_softmax,
                CLIPS, NORM, SHIFTED, ITEMS,
            )  # fmt: skip
            top = tl.maximum(top, tl.max(tl.where(inside, logits, float("-inf")), 0))
        tl.debug_barrier()
    products = tl.zeros((N,), tl.float32)
    totals = tl.zeros((N,), tl.float32)
    squares = tl.zeros((N,), tl.float32)
    broken = tl.zeros((N,), tl.float32)
    for i in range(0, count, STEP):
        row = i + tl.arange(0, STEP)
        inside = (row < count)[:, None] & taken
        s, logits = item_logits(
            cells, columns, statistics, first + row, column, owners, inside, slope, lambda_softmax,
            CLIPS, NORM, SHIFTED, ITEMS,
        )  # fmt: skip
        logits = logits - top[None, :] if SHIFTED else logits
        p = tl.exp2(tl.where(inside, logits * LOG2_E, float("-inf")))
        tl.store(weights + (first + row)[:, None] * columns + column[None, :], p, mask=(row < count)[:, None])
        lengths = tl.load(norms + row, mask=row < count, other=0.0)
        terms = p * (lengths * row_scales(lengths, NORMALIZE))[:, None]
        products += tl.sum(p * in_range(s), 0)
        totals += tl.sum(p, 0)
        squares += tl.sum(terms * terms, 0)
        broken += tl.sum(tl.where(s == s, 0.0, 1.0), 0)
    return products, totals, squares, broken


@triton.jit
def gram_squares(
    gram_weights, weights, columns, grams, gram_columns, first, count, column,
    KEEP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """‖a‖² = pᵀGp (N,) of one item's weights and Gram matrix; stores G p where KEEP."""
    squares = tl.zeros((N,), tl.float32)
    for i in range(0, count, M):
        row = i + tl.arange(0, M)
        product = tl.zeros((M, N), tl.float32)
        for k in range(0, count, STEP):
            other = k + tl.arange(0, STEP)
            g = tl.load(
                grams + row[:, None].to(tl.int64) * gram_columns + other[None, :],
                mask=(row < count)[:, None] & (other < count)[None, :], other=0.0,
            )  # fmt: skip
            p = tl.load(
                weights + (first + other)[:, None] * columns + column[None, :],
                mask=(other < count)[:, None], other=0.0,
            )  # fmt: skip
            product = tl.dot(g, p, product, input_precision=FINE)
        places = (first + row)[:, None] * columns + column[None, :]
        p = tl.load(weights + places, mask=(row < count)[:, None], other=0.0)
        squares += tl.sum(p * product, 0)
        if KEEP:
            tl.store(gram_weights + places, product, mask=(row < count)[:, None])
    return squares


@triton.jit
def item_features(
    features, norms, first_row, row, count, feature, known, per_item, item_stride, row_stride, NORMALIZE: tl.constexpr
):
    """(features as float32, what they are multiplied by) of rows of an item, counted from its first, and some columns.

    A row that is not finite has norm 0 and is not read: its scores are no numbers already.
    """
    lengths = tl.load(norms + first_row + row, mask=row < count, other=0.0)
    offsets = row_offsets(first_row + row, per_item, item_stride, row_stride)
    values = tl.load(features + offsets[:, None] + feature[None, :], mask=(lengths != 0)[:, None] & known, other=0.0)
    return values.to(tl.float32), row_scales(lengths, NORMALIZE)


@triton.jit
def attended_products(
    gram_weights, weights, columns,
    contexts, context_norms, context_row, context_per_item, context_item_stride, context_row_stride,
    first, count, column, queries, query_offsets, D,
    NORMALIZE: tl.constexpr, KEEP: tl.constexpr,
    N: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """q·a and ‖a‖² (N,) from the vectors a = Σ p c themselves, WIDTH columns of features at a time.

    Stores G p, which is c·a, where KEEP.
    """
    products = tl.zeros((N,), tl.float32)
    squares = tl.zeros((N,), tl.float32)
    for d in range(0, D, WIDTH):
        feature = d + tl.arange(0, WIDTH)
        known = (feature < D)[None, :]
        attended = tl.zeros((N, WIDTH), tl.float32)
        for i in range(0, count, STEP):
            row = i + tl.arange(0, STEP)
            c, scales = item_features(
                contexts, context_norms, context_row, row, count, feature, known, context_per_item,
                context_item_stride, context_row_stride, NORMALIZE,
            )  # fmt: skip
            places = (first + row)[:, None] * columns + column[None, :]
            p = tl.load(weights + places, mask=(row < count)[:, None], other=0.0) * scales[:, None]
            attended = tl.dot(tl.trans(p), c, attended, input_precision=FINE)
        if KEEP:
            tl.debug_barrier()  # what the columns before have left is added to
            for i in range(0, count, STEP):
                row = i + tl.arange(0, STEP)
                c, scales = item_features(
                    contexts, context_norms, context_row, row, count, feature, known, context_per_item,
                    context_item_stride, context_row_stride, NORMALIZE,
                )  # fmt: skip
                own = gram_weights + (first + row)[:, None] * columns + column[None, :]
                so_far = tl.load(own, mask=(row < count)[:, None] & (d > 0), other=0.0)
                part = tl.dot(c, tl.trans(attended), input_precision=FINE) * scales[:, None]
                tl.store(own, so_far + part, mask=(row < count)[:, None])
        q = tl.load(queries + query_offsets[:, None] + feature[None, :], mask=known, other=0.0).to(tl.float32)
        products += tl.sum(attended * q, 1)
        squares += tl.sum(attended * attended, 1)
    return products, squares


@triton.jit
def item_relevances(
    cells, weights, gram_weights, columns, statistics, grams, gram_columns,
    contexts, context_norms, context_row, context_per_item, context_item_stride, context_row_stride, first, count,
    queries, query_norms, query_rows, query_owners, query_firsts, query_lengths,
    query_per_item, query_item_stride, query_row_stride, query_tile, query_size, column,
    D, slope, lambda_softmax,
    NORMALIZE: tl.constexpr, CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, WHOLE: tl.constexpr,
    VECTORS: tl.constexpr, KEEP: tl.constexpr, ITEMS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Of one item of contexts and N queries from `column` on Σp, ‖a‖², ‖q‖‖a‖ and cos(q, a), NaN where broken; (N,).

    The item's rows stand from `first` on in the unit and from `context_row` on among all. Its weights are stored and,
    where KEEP, its Gram matrix times them.
    """
    q_rows, q_owners = block_slots(
        query_rows, query_owners, query_firsts, query_lengths, query_tile, query_size, column, N, WHOLE
    )
    column += tl.arange(0, N)
    q_norms = tl.load(query_norms + q_rows)
    q_scales = row_scales(q_norms, NORMALIZE)
    products, totals, squares, broken = store_weights(
        weights, cells, columns, statistics, context_norms + context_row, first, count, column, q_owners, slope,
        lambda_softmax, NORMALIZE, CLIPS, NORM, SHIFTED, ITEMS, N, STEP,
    )  # fmt: skip
    tl.debug_barrier()
    cancelled = tl.full((N,), 1, tl.int1)
    if not VECTORS:
        of_grams = gram_squares(
            gram_weights, weights, columns, grams, gram_columns, first, count, column, KEEP, M, N, STEP, FINE
        )
        cancelled = of_grams < squares * CANCELLED
        squares = of_grams
    if VECTORS or tl.max(cancelled.to(tl.int32)) > 0:
        q_offsets = row_offsets(q_rows, query_per_item, query_item_stride, query_row_stride)
        of_vectors, lengths = attended_products(
            gram_weights, weights, columns, contexts, context_norms, context_row, context_per_item,
            context_item_stride, context_row_stride, first, count, column, queries, q_offsets, D,
            NORMALIZE, KEEP and VECTORS, N, STEP, WIDTH, FINE,
        )  # fmt: skip
        products = tl.where(cancelled, of_vectors * q_scales, products)
        squares = tl.where(cancelled, lengths, squares)
    squares = tl.maximum(squares, 0.0)
    lengths = q_norms * q_scales * tl.sqrt(squares)
    relevances = tl.where(lengths != 0, products / least_length(lengths, totals), 0.0)
    return totals, squares, lengths, tl.where(broken > 0, float("nan"), relevances)


@triton.jit
def attend(
    cells, weights, gram_weights, columns, statistics, relevances,
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride, context_tile, rows,
    n_context_items, n_rows,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts, query_lengths,
    query_per_item, query_item_stride, query_row_stride, query_tile, n_query_items, n_columns,
    grams, local_tile, gram_columns, D, slope, lambda_softmax,
    WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr,
    VECTORS: tl.constexpr, KEEP: tl.constexpr, ITEMS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """From a unit's features to the relevances of its items of contexts and its queries, (ITEMS, columns).

    Where KEEP, Σp, ‖a‖² and ‖q‖‖a‖ follow them, and G p is stored; else the weights may take the similarities' place.
    Grams are of slots of tiles, of which this one is `local_tile`.
    """
    unit_similarities(
        cells, columns, contexts, context_norms, context_rows, context_owners, context_firsts, context_lengths,
        context_per_item, context_item_stride, context_row_stride, context_tile, rows, n_rows,
        queries, query_norms, query_rows, query_owners, query_firsts, query_lengths,
        query_per_item, query_item_stride, query_row_stride, query_tile, columns, n_columns, D,
        NORMALIZE, WHOLE, M, N, K, EVEN, MAIN,
    )  # fmt: skip
    tl.debug_barrier()
    if NORM != "none":
        unit_statistics(
            statistics, cells, columns, n_rows, query_items, query_counts, query_lengths, query_tile,
            n_query_items, slope, CLIPS, NORM, WHOLE, ITEMS, M, STEP,
        )  # fmt: skip
        tl.debug_barrier()
    first = 0
    for place in range(n_context_items):
        item, count = item_at(context_items, context_counts, context_lengths, context_tile, place, ITEMS, WHOLE)
        begin = tl.load(context_firsts + item)
        of_item = grams if VECTORS else grams + (local_tile * rows + first) * gram_columns
        for column in range(0, n_columns, N):
            totals, squares, lengths, r = item_relevances(
                cells, weights, gram_weights, columns, statistics, of_item, gram_columns,
                contexts, context_norms, begin, context_per_item, context_item_stride, context_row_stride,
                first, count, queries, query_norms, query_rows, query_owners, query_firsts, query_lengths,
                query_per_item, query_item_stride, query_row_stride, query_tile, columns, column,
                D, slope, lambda_softmax,
                NORMALIZE, CLIPS, NORM, SHIFTED, WHOLE, VECTORS, KEEP, ITEMS, M, N, STEP, WIDTH, FINE,
            )  # fmt: skip
            own = relevances + place * columns + column + tl.arange(0, N)
            tl.store(own, r)
            if KEEP:
                tl.store(own + ITEMS * columns, totals)
                tl.store(own + 2 * ITEMS * columns, squares)
                tl.store(own + 3 * ITEMS * columns, lengths)
        first += count
    tl.debug_barrier()
