"""One tile of contexts and queries in Triton: from similarities to attention, relevances and scores (kernels.md §1).

Contexts are the rows of a tile and queries its columns, in both directions. MAIN is the precision of products of
features, FINE that of all others.
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import (
    bounded,
    column_maxima,
    inverse,
    product,
    row_maxima,
    sum_columns,
    sum_rows,
    to_columns,
)

# Constants stand right of what they multiply: the interpreters of Triton 3.7 and 3.8 take them nowhere else.
EPS = tl.constexpr(1e-8)  # of the published code: added to norms after the root, and the cosine's least denominator
# Similarities beyond it, NaN among them, make their pairs NaN: squares and sums of what is below stay finite, so that
# the 0/1 products that share out a tile never meet 0 × ∞.
MOST = tl.constexpr(1e15)
MOST_LENGTH = tl.constexpr(3.1e7)  # of contexts, likewise: their products are within MOST
MOST_LOGIT = tl.constexpr(3.4e38)  # so that no difference to the greatest is ∞ − ∞, however large λ is
MOST_COSINE = tl.constexpr(2.0)
# Below this part of what orthogonal contexts would make it, pᵀGp is a small difference of large terms.
CANCELLED = tl.constexpr(0.25)
MENDED = tl.constexpr(16)  # columns of attended vectors at a time: few, as their tile waits in registers
TINY = tl.constexpr(1.1754944e-38)  # the least float32 of full precision
# exp(x) is exp2(x log₂e): exp2 takes one instruction, exp five.
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


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
    e = tl.where((query_owners >= 0)[None, :], tl.exp2(shifted * LOG2_E), 0.0)
    return e * to_columns(inverse(sum_columns(e, query_members, FINE)), query_members, FINE)


@triton.jit
def norm_factors(norms):
    """1 / (norm + ε); norms are 0 or from 1e-19 to 1e17, so that the square is in range."""
    return tl.rsqrt((norms + EPS) * (norms + EPS))


@triton.jit
def attention_weights(
    s, context_owners, n_context_items, query_members, query_owners, n_query_items, slope, lambda_softmax,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """p = exp(λn), up to a factor that each query's contexts share, (M, N); of empty slots anything finite.

    SHIFTED takes the maximum out. It can stay where |λn| is at most 20: weights of exp(±20) squared keep their digits.
    """
    x = clip(s, slope, CLIPS)
    scale = lambda_softmax if SHIFTED else lambda_softmax * LOG2_E  # a huge λ only where the maximum is taken out
    if NORM == "softmax":
        logits = scale * query_softmax(x, query_members, query_owners, n_query_items, FINE)
    elif NORM == "none":
        logits = scale * x
    else:
        factors = norm_factors(similarity_norms(x, query_members, NORM, FINE))
        if SHIFTED:
            logits = scale * (x * to_columns(factors, query_members, FINE))
        else:
            logits = x * to_columns(scale * factors, query_members, FINE)
    if SHIFTED:
        logits = bounded(logits, MOST_LOGIT)
        logits = (logits - row_maxima(logits, context_owners, n_context_items)) * LOG2_E
    return tl.exp2(logits)


@triton.jit
def attended_vectors(
    p, products, squares, cancelled, contexts, context_offsets, context_norms, context_owners, n_context_items,
    queries, query_offsets, D,
    N: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """q·a and ‖a‖² from the vectors a = Σ p c themselves where they were `cancelled`, (SEGMENTS, N)."""
    k = tl.arange(0, K)
    context_cells = contexts + context_offsets[:, None] + k[None, :]
    query_cells = queries + query_offsets[:, None] + k[None, :]
    # A row that is not finite has norm 0. It is not read: 0 × NaN would reach the tile's other items.
    finite = (context_norms != 0)[:, None]
    for item in range(n_context_items):
        own = tl.trans(tl.where((context_owners == item)[:, None], p, 0.0))
        product = tl.zeros((N,), tl.float32)
        square = tl.zeros((N,), tl.float32)
        for d in range(0, D, K):
            inside = (d + k < D)[None, :]
            c = tl.load(context_cells + d, mask=finite & inside, other=0.0).to(tl.float32)
            attended = tl.dot(own, c, input_precision=FINE)
            q = tl.load(query_cells + d, mask=inside, other=0.0).to(tl.float32)
            product += tl.sum(attended * q, 1)
            square += tl.sum(attended * attended, 1)
        here = (tl.arange(0, SEGMENTS) == item)[:, None] & cancelled
        products = tl.where(here, product[None, :], products)
        squares = tl.where(here, square[None, :], squares)
    return products, squares


@triton.jit
def attended_lengths(
    p, products, grams, contexts, context_offsets, context_scales, context_norms, context_members, context_owners,
    n_context_items, queries, query_offsets, query_scales, query_norms, D,
    N: tl.constexpr, K: tl.constexpr, SEGMENTS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """G p (M, N); of every item and query (SEGMENTS, N) q·a, which is Σ p s where that keeps its digits, and ‖a‖²."""
    gram_weights = tl.dot(grams, p, input_precision=FINE)
    squares = sum_rows(p * gram_weights, context_members, FINE)
    lengths = p * tl.minimum(context_norms * context_scales, MOST_LENGTH)[:, None]
    cancelled = squares < sum_rows(lengths * lengths, context_members, FINE) * CANCELLED
    cancelled = cancelled & (query_norms != 0)[None, :]  # empty slots, whatever their weights, need no vectors
    if tl.max(cancelled.to(tl.int32)) > 0:
        # Products of the scaled query, as those of the similarities are.
        products, squares = attended_vectors(
            p * context_scales[:, None], products * inverse(query_scales)[None, :], squares, cancelled, contexts,
            context_offsets, context_norms, context_owners, n_context_items, queries, query_offsets, D,
            N, K, SEGMENTS, FINE,
        )  # fmt: skip
        products = products * query_scales[None, :]
    return gram_weights, products, squares


@triton.jit
def pooled_exponentials(relevances, query_owners, n_query_items, lambda_lse, SHIFTED: tl.constexpr):
    """(exp(λ₂(r − shift)), shift), both (context items, N). A small λ₂ needs no shift."""
    shift = column_maxima(relevances, query_owners, n_query_items) if SHIFTED else tl.zeros_like(relevances)
    return tl.exp2(lambda_lse * (relevances - shift) * LOG2_E), shift


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
        shifts = sum_columns(shift, query_members, FINE) / count
        sums = sum_columns(e, query_members, FINE)
        return tl.log2(tl.where(sums > 0, sums, 1.0)) * LN_2 / lambda_lse + shifts
    if POOLING == "max":
        place = tl.arange(0, query_counts.shape[0])[None, :]
        scores = tl.zeros((relevances.shape[0], query_counts.shape[0]), tl.float32)
        for item in range(n_query_items):
            best = tl.max(tl.where((query_owners == item)[None, :], relevances, float("-inf")), 1)
            scores = tl.where(place == item, best[:, None], scores)
        return scores
    sums = sum_columns(relevances, query_members, FINE)
    return sums / tl.maximum(query_counts, 1).to(tl.float32)[None, :] if POOLING == "avg" else sums


@triton.jit
def broken_pairs(fine, context_members, query_members, FINE: tl.constexpr):
    """Of every pair whether one of its similarities is out of range, (context items, query items), as 0 and 1."""
    broken = tl.where(fine, 0.0, 1.0)
    return tl.minimum(sum_columns(sum_rows(broken, context_members, FINE), query_members, FINE), 1.0)


@triton.jit
def tile_similarities(
    contexts, context_offsets, context_scales, context_norms, context_members,
    queries, query_offsets, query_scales, query_members, D,
    NORMALIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    CONTEXT_ITEMS: tl.constexpr, QUERY_ITEMS: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """(similarities (M, N), 0 where out of range, and 1 for every pair (context, query) that has such, else 0)."""
    s = product(contexts, context_offsets, queries, query_offsets, D, M, N, K, EVEN, MAIN)
    if NORMALIZE:
        s = s * context_scales[:, None] * query_scales[None, :]
    lengths = context_norms * context_scales
    broken = tl.zeros((CONTEXT_ITEMS, QUERY_ITEMS), tl.float32)
    # Nearly always all are in range, as their sum tells; where it does not, each is looked at.
    if not ((tl.sum(tl.abs(s)) < MOST) & (tl.max(lengths) < MOST_LENGTH)):
        fine = (tl.abs(s) < MOST) & (lengths < MOST_LENGTH)[:, None]
        broken = broken_pairs(fine, context_members, query_members, FINE)
        s = tl.where(fine, s, 0.0)
    return s, broken


@triton.jit
def tile_relevances(
    s, grams, contexts, context_offsets, context_scales, context_norms, context_members, context_owners,
    n_context_items, queries, query_offsets, query_scales, query_norms, query_members, query_owners, n_query_items,
    D, slope, lambda_softmax,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr,
    N: tl.constexpr, CONTEXT_ITEMS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Of a tile p and G p (M, N); of every context item and query (CONTEXT_ITEMS, N) Σp, ‖a‖², ‖q‖‖a‖ and cos(q, a)."""
    p = attention_weights(
        s, context_owners, n_context_items, query_members, query_owners, n_query_items, slope, lambda_softmax,
        CLIPS, NORM, SHIFTED, FINE,
    )  # fmt: skip
    products = sum_rows(p * s, context_members, FINE)
    totals = sum_rows(p, context_members, FINE)
    gram_weights, products, squares = attended_lengths(
        p, products, grams, contexts, context_offsets, context_scales, context_norms, context_members, context_owners,
        n_context_items, queries, query_offsets, query_scales, query_norms, D, N, MENDED, CONTEXT_ITEMS, FINE,
    )  # fmt: skip
    squares = tl.maximum(squares, 0.0)
    lengths = (query_norms * query_scales)[None, :] * tl.sqrt(squares)
    # Cosines are within ±1. What broken pairs have must be finite too, beside others in sums over queries.
    cosines = bounded(products / least_length(lengths, totals), MOST_COSINE)
    relevances = tl.where(lengths != 0, cosines, 0.0)
    return p, gram_weights, totals, squares, lengths, relevances


@triton.jit
def least_length(lengths, totals):
    """The cosine's denominator: ‖q‖‖a‖ or its floor, scaled by the Σp that the attended vectors lack; above 0."""
    return tl.maximum(tl.maximum(lengths, totals * EPS), TINY)
