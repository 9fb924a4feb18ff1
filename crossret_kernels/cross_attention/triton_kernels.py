"""Triton kernels of stacked cross attention: kernels.md §1 and §2 over tiles of whole images and captions.

Contexts are the rows of every tile and queries its columns, in both directions. A tile's similarities never leave the
chip: they become its pairs' scores, or the gradients of themselves. WHOLE tiles hold one item of each side, a listed
pair; others hold what `tile_plan` packed. MAIN is the precision of products of features, FINE that of all others.
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import (
    bounded,
    column_maxima,
    grouped,
    inverse,
    item_slots,
    membership,
    product,
    row_maxima,
    row_offsets,
    sum_columns,
    sum_rows,
    tile_items,
    to_columns,
)

EPS = tl.constexpr(1e-8)  # of the published code: added to norms after the root, and the cosine's least denominator
# Similarities beyond it, NaN among them, make their pairs NaN: squares and sums of what is below stay finite, so that
# the 0/1 products that share out a tile never meet 0 × ∞.
MOST = tl.constexpr(1e15)
# Below this part of what orthogonal contexts would make it, pᵀGp is a small difference of large terms.
CANCELLED = tl.constexpr(0.25)


@triton.jit
def item_grams(
    contexts, offsets, owners, scales, D,
    M: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """(M, M): products of the tile's contexts with those of their own item, 0 elsewhere."""
    grams = product(contexts, offsets, contexts, offsets, D, M, M, K, EVEN, MAIN)
    grams = bounded(grams * scales[:, None] * scales[None, :], MOST)
    own = (owners[:, None] == owners[None, :]) & (owners >= 0)[:, None]
    return tl.where(own, grams, 0.0)


@triton.jit
def gram_tiles(
    contexts, norms, rows_table, owners_table, grams, first_tile, per_item, item_stride, row_stride, D,
    NORMALIZE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """Gram matrices of a run of tiles, (tiles, M, M)."""
    local = tl.program_id(0).to(tl.int64)
    rows, owners = item_slots(rows_table, owners_table, rows_table, rows_table, first_tile + local, M, False)
    lengths = tl.load(norms + rows)
    scales = inverse(lengths) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    offsets = row_offsets(rows, per_item, item_stride, row_stride)
    tile = item_grams(contexts, offsets, owners, scales, D, M, K, EVEN, MAIN)
    cells = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(grams + local * M * M + cells, tile)


@triton.jit
def clip(s, slope, CLIPS: tl.constexpr):
    return tl.where(s > 0, s, slope * s) if CLIPS else s


@triton.jit
def similarity_norms(x, query_members, NORM: tl.constexpr, FINE: tl.constexpr):
    """Of every context its similarities' length along each item's queries, (M, query items)."""
    terms = tl.abs(x) if NORM == "l1norm" else x * x
    sums = sum_columns(terms, query_members, FINE)
    return sums if NORM == "l1norm" else tl.sqrt(sums)


@triton.jit
def query_softmax(x, query_members, query_owners, n_query_items, FINE: tl.constexpr):
    """Of every context the softmax of its similarities along each item's queries, (M, N); 0 in empty slots."""
    shifted = x - column_maxima(x, query_owners, n_query_items)
    e = tl.where((query_owners >= 0)[None, :], tl.exp(shifted), 0.0)
    return e * to_columns(inverse(sum_columns(e, query_members, FINE)), query_members, FINE)


@triton.jit
def attention_weights(
    s, context_owners, n_context_items, query_members, query_owners, n_query_items, slope, lambda_softmax,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """p = exp(λn), up to a factor that each query's contexts share, (M, N); 0 in empty rows.

    SHIFTED takes the maximum out. It can stay where |λn| is at most 20: weights of exp(±20) squared keep their digits.
    """
    x = clip(s, slope, CLIPS)
    if NORM == "softmax":
        n = query_softmax(x, query_members, query_owners, n_query_items, FINE)
    elif NORM == "none":
        n = x
    else:
        norms = similarity_norms(x, query_members, NORM, FINE)
        factors = tl.where(norms != 0, 1.0 / (norms + EPS), 0.0)
        n = x * to_columns(factors, query_members, FINE)
    logits = lambda_softmax * n
    if SHIFTED:
        logits -= row_maxima(logits, context_owners, n_context_items)
    return tl.where((context_owners >= 0)[:, None], tl.exp(logits), 0.0)


@triton.jit
def attended_squares(
    p, squares, cancelled, contexts, context_offsets, context_owners, n_context_items, D,
    N: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """‖Σ p c‖² from the contexts themselves where it was `cancelled`, (SEGMENTS, N)."""
    k = tl.arange(0, K)
    cells = contexts + context_offsets[:, None] + k[None, :]
    for item in range(n_context_items):
        own = tl.trans(tl.where((context_owners == item)[:, None], p, 0.0))
        lengths = tl.zeros((N,), tl.float32)
        for d in range(0, D, K):
            c = tl.load(cells + d, mask=(d + k < D)[None, :], other=0.0).to(tl.float32)
            attended = tl.dot(own, c, input_precision=FINE)
            lengths += tl.sum(attended * attended, 1)
        here = (tl.arange(0, SEGMENTS) == item)[:, None] & cancelled
        squares = tl.where(here, lengths[None, :], squares)
    return squares


@triton.jit
def attended_lengths(
    p, grams, contexts, context_offsets, context_scales, context_norms, context_members, context_owners,
    n_context_items, D,
    N: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """(G p (M, N), ‖Σ p c‖² of every item and query (SEGMENTS, N))."""
    gram_weights = tl.dot(grams, p, input_precision=FINE)
    squares = sum_rows(p * gram_weights, context_members, FINE)
    lengths = p * (context_norms * context_scales)[:, None]
    cancelled = squares < CANCELLED * sum_rows(lengths * lengths, context_members, FINE)
    if tl.max(cancelled.to(tl.int32)) > 0:
        squares = attended_squares(
            p * context_scales[:, None], squares, cancelled, contexts, context_offsets, context_owners,
            n_context_items, D, N, K, SEGMENTS, FINE,
        )  # fmt: skip
    return gram_weights, squares


@triton.jit
def pair_sums(values, query_members, FINE: tl.constexpr):
    """Sums over each caption's queries: (context items, N) to (context items, query items)."""
    return tl.dot(values, query_members, input_precision=FINE)


@triton.jit
def pooled_exponentials(relevances, query_owners, n_query_items, lambda_lse, SHIFTED: tl.constexpr):
    """(exp(λ₂r − shift), shift), both (context items, N); 0 in empty slots. No shift is needed while λ₂ is small."""
    logits = lambda_lse * relevances
    shift = column_maxima(logits, query_owners, n_query_items) if SHIFTED else tl.zeros_like(logits)
    return tl.where((query_owners >= 0)[None, :], tl.exp(logits - shift), 0.0), shift


@triton.jit
def first_column(x, inside):
    """Of every row the first column, of those inside, that holds its greatest value."""
    column = tl.arange(0, x.shape[1])[None, :]
    best = tl.max(tl.where(inside, x, float("-inf")), 1)
    return tl.min(tl.where(inside & (x == best[:, None]), column, x.shape[1]), 1)


@triton.jit
def pooled(
    relevances, query_members, query_owners, query_counts, n_query_items, lambda_lse,
    POOLING: tl.constexpr, SHIFTED: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Scores of every pair of the tile, (context items, query items): SCAN Eqs. 5–8."""
    if POOLING == "lse":
        e, shift = pooled_exponentials(relevances, query_owners, n_query_items, lambda_lse, SHIFTED)
        # Every slot of an item has its shift, so their mean is it.
        count = tl.maximum(query_counts, 1).to(tl.float32)[None, :]
        shifts = pair_sums(shift, query_members, FINE) / count
        sums = pair_sums(e, query_members, FINE)
        return (tl.log(tl.where(sums > 0, sums, 1.0)) + shifts) / lambda_lse
    if POOLING == "max":
        place = tl.arange(0, query_counts.shape[0])[None, :]
        scores = tl.zeros((relevances.shape[0], query_counts.shape[0]), tl.float32)
        for item in range(n_query_items):
            best = tl.max(tl.where((query_owners == item)[None, :], relevances, float("-inf")), 1)
            scores = tl.where(place == item, best[:, None], scores)
        return scores
    sums = pair_sums(relevances, query_members, FINE)
    return sums / tl.maximum(query_counts, 1).to(tl.float32)[None, :] if POOLING == "avg" else sums


@triton.jit
def broken_pairs(fine, context_members, query_members, FINE: tl.constexpr):
    """Of every pair whether one of its similarities is out of range, (context items, query items), as 0 and 1."""
    broken = tl.where(fine, 0.0, 1.0)
    return tl.minimum(pair_sums(sum_rows(broken, context_members, FINE), query_members, FINE), 1.0)


@triton.jit
def scan_forward(
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_lengths, query_per_item, query_item_stride, query_row_stride,
    pairs, grams, scores, score_context_stride, score_query_stride,
    first_context_tile, n_context_tiles, n_query_tiles, D, slope, lambda_softmax, lambda_lse,
    CONTEXT_COLUMN: tl.constexpr, WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, POOLING: tl.constexpr, POOL_SHIFTED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CONTEXT_ITEMS: tl.constexpr, QUERY_ITEMS: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Scores of all pairs of one tile of contexts and one of queries, or of one listed pair."""
    program = tl.program_id(0)
    if WHOLE:
        context_tile = tl.load(pairs + 2 * program.to(tl.int64) + CONTEXT_COLUMN)
        query_tile = tl.load(pairs + 2 * program.to(tl.int64) + 1 - CONTEXT_COLUMN)
        gram_tile = context_tile
    else:
        gram_tile, query_tile = grouped(program, n_context_tiles, n_query_tiles, 8)
        context_tile = first_context_tile + gram_tile
    c_rows, c_owners = item_slots(context_rows, context_owners, context_firsts, context_lengths, context_tile, M, WHOLE)
    q_rows, q_owners = item_slots(query_rows, query_owners, query_firsts, query_lengths, query_tile, N, WHOLE)
    c_items, _ = tile_items(context_items, context_counts, context_lengths, context_tile, CONTEXT_ITEMS, WHOLE)
    q_items, q_counts = tile_items(query_items, query_counts, query_lengths, query_tile, QUERY_ITEMS, WHOLE)
    n_context_items = tl.sum((c_items >= 0).to(tl.int32))
    n_query_items = tl.sum((q_items >= 0).to(tl.int32))
    c_offsets = row_offsets(c_rows, context_per_item, context_item_stride, context_row_stride)
    q_offsets = row_offsets(q_rows, query_per_item, query_item_stride, query_row_stride)
    c_norms = tl.load(context_norms + c_rows)
    q_norms = tl.where(q_owners >= 0, tl.load(query_norms + q_rows), 0.0)
    c_scales = inverse(c_norms) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    q_scales = inverse(q_norms) if NORMALIZE else tl.full((N,), 1.0, tl.float32)

    s = product(contexts, c_offsets, queries, q_offsets, D, M, N, K, EVEN, MAIN)
    if NORMALIZE:
        s = s * c_scales[:, None] * q_scales[None, :]
    c_members = membership(c_owners, CONTEXT_ITEMS)
    q_members = membership(q_owners, QUERY_ITEMS)
    fine = tl.abs(s) < MOST
    broken = tl.zeros((CONTEXT_ITEMS, QUERY_ITEMS), tl.float32)
    if tl.min(fine.to(tl.int32)) == 0:
        broken = broken_pairs(fine, c_members, q_members, FINE)
    s = tl.where(fine, s, 0.0)

    if WHOLE:
        tile_grams = item_grams(contexts, c_offsets, c_owners, c_scales, D, M, K, EVEN, MAIN)
    else:
        cells = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
        tile_grams = tl.load(grams + gram_tile.to(tl.int64) * M * M + cells)
    p = attention_weights(
        s, c_owners, n_context_items, q_members, q_owners, n_query_items, slope, lambda_softmax,
        CLIPS, NORM, SHIFTED, FINE,
    )  # fmt: skip
    products = sum_rows(p * s, c_members, FINE)
    totals = sum_rows(p, c_members, FINE)
    _, squares = attended_lengths(
        p, tile_grams, contexts, c_offsets, c_scales, c_norms, c_members, c_owners, n_context_items, D,
        N, K, CONTEXT_ITEMS, FINE,
    )  # fmt: skip
    lengths = (q_norms * q_scales)[None, :] * tl.sqrt(tl.maximum(squares, 0.0))
    relevances = tl.where(lengths != 0, products / tl.maximum(tl.maximum(lengths, EPS * totals), 1e-38), 0.0)
    tile_scores = pooled(
        relevances, q_members, q_owners, q_counts, n_query_items, lambda_lse, POOLING, POOL_SHIFTED, FINE
    )
    tile_scores = tl.where(broken != 0, float("nan"), tile_scores)
    known = (c_items >= 0)[:, None] & (q_items >= 0)[None, :]
    if WHOLE:
        places = program.to(tl.int64) + tl.zeros((CONTEXT_ITEMS, QUERY_ITEMS), tl.int64)
    else:
        places = c_items[:, None] * score_context_stride + q_items[None, :] * score_query_stride
    tl.store(scores + places, tile_scores, mask=known)
