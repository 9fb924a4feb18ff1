"""Relevances in Triton: cosines of queries with their attended vectors, by the vectors where those cancel."""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton.attention import (
    EPS,
    LEAST,
    LOG2_E,
    LOWEST,
    OF_PRODUCTS,
    OF_SQUARES,
    SHIFT,
    clip,
    counted_lengths,
    int64,
    item_of,
    logits_of,
    norm_factors,
    query_norms,
    row_lengths,
    spread,
)
from crossret_kernels.gpu.triton_tiles import bounded, decoded, inverse

MOST_COSINE, MOST_PROJECTION = tl.constexpr(2.0), tl.constexpr(2.0**26)  # bounds of relevances
TO_RECOMPUTE = tl.constexpr(float("inf"))  # in place of a relevance that `recompute_cancelled` replaces
MOST_FACTOR = tl.constexpr(1e30)  # bound of factors of gradients: 0/1 products meet no 0 × ∞
TINY = tl.constexpr(1.1754944e-38)  # least normal float32


@triton.jit
def store_relevances(run, places, here, products, squares, totals, lengths, cancels, KIND: tl.constexpr):
    """Stores the relevances of queries from q·a, ‖a‖² and Σp into the first plane of `run.kept`, (items, rows).

    SAVE stores two more planes: with g = ∂L/∂r, ∂L/∂(q·a) is g OF_PRODUCTS and 2 ∂L/∂‖a‖² is −g OF_SQUARES. The planes
    SHIFT, LEAST and LOWEST have `limits` of `context_weights`.
    """
    MOST: tl.constexpr = MOST_PROJECTION if KIND.PROJECTS else MOST_COSINE
    lengths = lengths * tl.sqrt(squares)
    # Denominator of the cosine: ‖q‖‖a‖ or its floor, times Σp, by which the attended vectors are not divided.
    denominators = tl.maximum(tl.maximum(lengths, totals * EPS), TINY)
    relevances = tl.where(lengths != 0, bounded(products / denominators, MOST), 0.0)
    tl.store(places, tl.where(cancels, TO_RECOMPUTE, relevances), mask=here)
    if KIND.SAVE:
        # ∂L/∂(Σp), of the floor, is the same for all contexts of a query: the softmax drops it.
        of_products = tl.minimum(tl.where(lengths != 0, 1.0 / denominators, 0.0), MOST_FACTOR)
        moves = (lengths != 0) & (lengths >= totals * EPS) & (squares > 0)
        of_squares = bounded(tl.where(moves, relevances / tl.maximum(squares, TINY), 0.0), MOST_FACTOR)
        tl.store(places + OF_PRODUCTS * decoded(run.sizes.kept_plane), of_products, mask=here)
        tl.store(places + OF_SQUARES * decoded(run.sizes.kept_plane), of_squares, mask=here)


@triton.jit
def recompute_cancelled(run, query, begin, end, KIND: tl.constexpr):
    """Recomputes the relevances marked TO_RECOMPUTE of an item of queries and some items of contexts: few pairs have
    any.
    """
    first, count = item_of(run.queries, query)
    for item in range(begin, end):
        for row in range(first, first + count):
            if tl.load(run.kept + int64(item) * decoded(run.sizes.kept_pitch) + row) == TO_RECOMPUTE:
                tl.debug_barrier()  # all threads have read it before `recompute_row` writes it
                recompute_row(run, item, first, count, row, KIND)
    tl.debug_barrier()  # relevances are read again, by any thread


@triton.jit
def recompute_row(run, item, first, count, row, KIND: tl.constexpr):
    """Relevance of one row of queries from the attended vector a = Σ p c itself; tensors have one element."""
    one = tl.arange(0, 1)
    d = tl.arange(0, KIND.WIDTH)
    rows = row + one
    here = one == 0
    places = run.kept + int64(item) * decoded(run.sizes.kept_pitch) + rows
    query_lengths, query_scales = counted_lengths(run.queries, rows, here, KIND)
    shift = tl.full((1,), 0, tl.float32)
    if KIND.SHIFTED:
        shift = tl.load(places + SHIFT * decoded(run.sizes.kept_plane))
    attended = tl.full((KIND.WIDTH,), 0, tl.float32)
    totals = tl.full((1,), 0, tl.float32)
    context, n_contexts = item_of(run.contexts, item)
    for c in range(0, n_contexts):
        _lengths, scales = row_lengths(run.contexts, context + c + one, here, KIND)
        columns = (0 if KIND.LISTED else context) + c + one
        s = tl.load(run.S + rows * (decoded(run.sizes.pitch) * 16) + columns)
        if KIND.NORMALIZE:
            s = s * query_scales * scales
        n = clip(s, run, KIND)
        if KIND.NORM != "none":
            norms, greatest = query_norms(run, first, count, columns, scales, here, KIND)
            n = tl.exp2((n - greatest) * LOG2_E) * inverse(norms) if KIND.NORM == "softmax" else n * norm_factors(norms)
        if KIND.SPREAD:
            lowest = tl.load(places + LOWEST * decoded(run.sizes.kept_plane))
            p, stays = spread(n, shift, lowest, n_contexts, run)
            p = tl.where(stays, p, 0.0)
        else:
            p = tl.exp2(logits_of(n, shift, run, KIND))
        if KIND.FOCAL:
            least = tl.load(places + LEAST * decoded(run.sizes.kept_plane))
            p = tl.where(p > least, p, 0.0)
        x = tl.load(run.contexts.rows + int64(context + c) * KIND.D + d, mask=d < KIND.D, other=0.0).to(tl.float32)
        attended += p * scales * x
        totals += p
    q = tl.load(run.queries.rows + int64(row) * KIND.D + d, mask=d < KIND.D, other=0.0).to(tl.float32)
    products, squares = tl.sum(attended * q) * query_scales, tl.sum(attended * attended) + shift * 0.0
    store_relevances(run, places, here, products, squares, totals, query_lengths, here == 0, KIND)
