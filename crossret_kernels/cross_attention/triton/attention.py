"""Stacked cross attention of one tile in Triton: queries of whole items by contexts of one item (docs/kernels.md §1)
and their relevances: cosines with attended vectors, by the vectors where those cancel.

Queries are a tile's rows and contexts its columns, in both directions. Sums over an item's queries are products with a
0/1 matrix, so that items of any lengths share a tile; all numbers in these products are finite, by `pack_rows`. `run`
is a `chunks.RunInputs`, KIND a `call.AttentionKind`.
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.attention import FOCAL_SLACK
from crossret_kernels.gpu.triton_tiles import bounded, decoded, inverse, share_left

# Constants stand right of what they multiply: the interpreters of Triton 3.7 and 3.8 take them nowhere else.
EPS = tl.constexpr(1e-8)  # the published code's: added to norms after the root, and least denominator of the cosine
MOST_LOGIT = tl.constexpr(3.4e38)  # bound of logits: differences to the greatest are never ∞ − ∞
LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x log₂e), in one instruction of five
# Planes of the values kept of each item of contexts and row of queries (`store_relevances`).
OF_PRODUCTS, OF_SQUARES, SHIFT, OF_RELEVANCES, LEAST, LOWEST = (tl.constexpr(plane) for plane in range(1, 7))
OF_MEAN = tl.constexpr(1 - FOCAL_SLACK)  # part of its mean from which on a focal weight stays
MOST_COSINE, MOST_PROJECTION = tl.constexpr(2.0), tl.constexpr(2.0**26)  # bounds of relevances
TO_RECOMPUTE = tl.constexpr(float("inf"))  # in place of a relevance that `recompute_cancelled` replaces
MOST_FACTOR = tl.constexpr(1e30)  # bound of factors of gradients: 0/1 products meet no 0 × ∞
TINY = tl.constexpr(1.1754944e-38)  # least normal float32


@triton.jit
def zero_nan(x):
    """x, with 0 in place of NaN, which 0/1 products would spread."""
    return tl.where(x == x, x, 0.0)


@triton.jit
def int64(index):
    """An index as int64; loop variables of the interpreter are Python's integers."""
    return tl.full((), 0, tl.int64) + index


@triton.jit
def item_of(side, item):
    """(first row, number of rows) of an item."""
    return tl.load(side.items + 4 * item), tl.load(side.items + 4 * item + 1)


@triton.jit
def rows_within(first, r, count):
    """The rows r of `count` rows from the first on; those behind the last repeat it; the run's first where there are
    none.
    """
    return tl.where(count > 0, first + tl.minimum(r, tl.maximum(count - 1, 0)), 0)


@triton.jit
def row_lengths(side, rows, inside, KIND: tl.constexpr):
    """(Lengths of packed rows as attention sees them, scales of their similarities); 0 of rows that are masked out.

    A row that was not finite is zeros, and has the norm NaN.
    """
    norms = tl.load(side.norms + rows, mask=inside, other=0.0)
    norms = tl.where(norms == norms, norms, 0.0)
    if KIND.NORMALIZE:
        return (norms != 0).to(tl.float32), inverse(norms)
    return norms, tl.where(inside, 1.0, 0.0)


@triton.jit
def counted_lengths(side, rows, inside, KIND: tl.constexpr):
    """`row_lengths` of queries as relevances count them: a projection takes each for 1."""
    lengths, scales = row_lengths(side, rows, inside, KIND)
    if KIND.PROJECTS:
        lengths = tl.where(inside, 1.0, 0.0)
    return lengths, scales


@triton.jit
def query_tile(number, run, KIND: tl.constexpr):
    """A tile of queries: whole items; a piece of one item where LONG; one pair's queries where LISTED.

    Returns (first item, number of items, first row, number of rows with empty slots, (N,) mask of the items' rows, (N,
    G) 0/1 membership, lengths and scales of the rows).
    """
    N: tl.constexpr = KIND.N
    G: tl.constexpr = KIND.G
    slots = decoded(run.sizes.query_slots)
    tile_items = decoded(run.sizes.tile_items)
    if tile_items > 0:
        piece = number % decoded(run.sizes.pieces) * N
        first_item = number // decoded(run.sizes.pieces) * tile_items
        n_items = tl.minimum(tile_items, decoded(run.sizes.n_queries) - first_item)
        row = first_item * slots + piece
        n_rows = tl.minimum(n_items * slots - piece, N)
    else:
        first = run.tiles + 2 * decoded(run.sizes.first_tile)
        tile = first + 2 * number
        row = tl.load(tile) - tl.load(first)
        n_rows = tl.load(tile + 2) - tl.load(tile)
        first_item = tl.load(tile + 1) - tl.load(first + 1)
        n_items = tl.maximum(tl.load(tile + 3) - tl.load(tile + 1), 1)
    rows = row + tl.arange(0, N)
    g = tl.arange(0, G)
    items = run.queries.items + 4 * (first_item + g)
    begins = tl.load(items, mask=g < n_items, other=0)
    ends = begins + tl.load(items + 1, mask=g < n_items, other=0)
    inside = (rows[:, None] >= begins[None, :]) & (rows[:, None] < ends[None, :])
    here = tl.max(inside.to(tl.int32), 1) > 0
    lengths, scales = counted_lengths(run.queries, rows, here, KIND)
    return first_item, n_items, row, n_rows, here, inside.to(tl.float32), lengths, scales


@triton.jit
def contexts_of(tile, run, KIND: tl.constexpr):
    """(Begin, end) of the items of contexts that a program attends to: some, or where LISTED the pair's."""
    if KIND.LISTED:
        begin = tile[0]
        end = begin + 1
    else:
        begin = tl.program_id(1) * decoded(run.sizes.contexts_per_program)
        end = tl.minimum(begin + decoded(run.sizes.contexts_per_program), decoded(run.sizes.n_contexts))
    return begin, end


@triton.jit
def similarities(run, tile, context, start, KIND: tl.constexpr):
    """(N, C) similarities of a tile's queries and C contexts from `start` on, of an item (first row, number of rows).

    Cells without a context are finite. Items of contexts begin at multiples of four, so that a lane loads 16 bytes at
    once: clamped indices would hide that.
    """
    _first_item, _n_items, row, n_rows, _here, _members, _query_lengths, query_scales = tile
    c = start + tl.arange(0, KIND.C)
    q = tl.minimum(row + tl.arange(0, KIND.N), tl.maximum(row + n_rows - 1, 0))
    first = 0 if KIND.LISTED else context[0]
    cells = run.S + q[:, None] * (decoded(run.sizes.pitch) * 16) + (tl.multiple_of(first, 4) + c)[None, :]
    s = tl.load(tl.max_contiguous(tl.multiple_of(cells, [1, 16]), [1, 4]))
    if KIND.NORMALIZE:
        s = s * query_scales[:, None] * context_scales(run, context, start, KIND)[None, :]
    return s


@triton.jit
def context_scales(run, context, start, KIND: tl.constexpr):
    """(C,) factors of the similarities of contexts from `start` on, 0 behind the item's last."""
    c = start + tl.arange(0, KIND.C)
    there = c < context[1]
    if KIND.NORMALIZE:
        _lengths, scales = row_lengths(run.contexts, rows_within(context[0], c, context[1]), there, KIND)
        return scales
    return there.to(tl.float32)


@triton.jit
def clip(s, run, KIND: tl.constexpr):
    return tl.where(s > 0, s, run.numbers.slope * s) if KIND.CLIPS else s


@triton.jit
def query_norms(run, first, count, columns, scales, there, KIND: tl.constexpr):
    """Norms of some columns of S along an item's queries: (norms, or the softmax's sums of exponentials; maxima)."""
    j = tl.arange(0, 32)
    pitch = decoded(run.sizes.pitch) * 16
    cells = run.S + int64(first + j)[:, None] * pitch + columns[None, :]
    greatest = tl.full(columns.shape, float("-inf"), tl.float32)
    sums = tl.full(columns.shape, 0, tl.float32)
    for step in tl.static_range(2 if KIND.NORM == "softmax" else 1):
        for start in range(0, count, 32):
            inside = (start + j < count)[:, None] & there[None, :]
            s = tl.load(cells + int64(start) * pitch, mask=inside, other=0.0)
            if KIND.NORMALIZE:
                _lengths, query_scales = row_lengths(run.queries, first + start + j, start + j < count, KIND)
                s = s * query_scales[:, None] * scales[None, :]
            x = clip(s, run, KIND)
            if KIND.NORM != "softmax":
                sums += tl.sum(tl.abs(x) if KIND.NORM == "l1norm" else x * x, 0)
            elif step == 0:
                greatest = tl.maximum(greatest, tl.max(tl.where(inside, x, float("-inf")), 0))
            else:
                logits = (x - greatest[None, :]) * LOG2_E
                sums += tl.sum(tl.exp2(tl.where(inside, logits, float("-inf"))), 0)
    return tl.sqrt(sums) if KIND.NORM == "l2norm" else sums, greatest


@triton.jit
def norm_factors(norms):
    """1 / (norm + ε); norms are 0 or within 1e-19 … 1e17, so that squares are in range."""
    return tl.rsqrt((norms + EPS) * (norms + EPS))


@triton.jit
def item_sums(x, members, KIND: tl.constexpr):
    """Sums over the rows of each item, (G, columns)."""
    SHARED: tl.constexpr = "tf32x3" if KIND.FOCAL else KIND.FINE
    return share_left(tl.trans(members), x, SHARED)


@triton.jit
def normalised(x, run, tile, context, start, KIND: tl.constexpr):
    """(n (N, C): clipped similarities normalised along each item's queries; the norms (G, C)).

    Norms of LONG items were found by `forward.query_statistics`. FOCAL weights of equal n are equal by more digits than
    TF32 has.
    """
    SHARED: tl.constexpr = "tf32x3" if KIND.FOCAL else KIND.FINE
    first_item, n_items, row, _n_rows, _here, members, _query_lengths, _query_scales = tile
    norms = tl.full((members.shape[1], x.shape[1]), 0, tl.float32)
    n = x
    context_rows = rows_within(context[0], start + tl.arange(0, KIND.C), context[1])
    statistics = run.statistics + context_rows.to(tl.int64) * decoded(run.sizes.statistics_pitch)
    if not KIND.LISTED:
        statistics += first_item
    if KIND.NORM == "softmax":
        shift = x
        if KIND.LONG:
            sums = tl.load(statistics)[None, :] + norms
            greatest = tl.load(statistics + decoded(run.sizes.plane))[None, :] + tl.zeros_like(x)
            shift = tl.where(tl.sum(members, 1)[:, None] > 0, greatest, x)
        else:
            rows = row + tl.arange(0, x.shape[0])
            for place in range(n_items):
                first, count = item_of(run.queries, first_item + place)
                inside = ((rows >= first) & (rows < first + count))[:, None]
                shift = tl.where(inside, tl.max(tl.where(inside, x, float("-inf")), 0)[None, :], shift)
        e = tl.exp2((x - shift) * LOG2_E)
        if not KIND.LONG:
            sums = item_sums(e, members, KIND)
        n = e * share_left(members, inverse(sums), SHARED)
    elif KIND.NORM != "none":
        if KIND.LONG:
            norms = tl.load(statistics)[None, :] + norms
        elif KIND.NORM == "l1norm":
            norms = item_sums(tl.abs(x), members, KIND)
        else:
            norms = tl.sqrt(item_sums(x * x, members, KIND))
        n = x * share_left(members, norm_factors(norms), SHARED)
    return n, norms


@triton.jit
def context_weights(s, run, tile, context, start, limits, KIND: tl.constexpr):
    """(Weights p = exp(λn), or of SPREAD `spread`, (N, C), up to a factor of each query, 0 without a context; n; its
    norms).

    `limits` are a query's greatest logit, the weight that those which stay exceed, and its least logit. SHIFTED
    subtracts the first; logits above it belong to empty slots. Without it |λn| is at most 20: exp(±20) squared keeps
    its digits. FOCAL takes the second, SPREAD the first and the last.
    """
    shift, least, lowest = limits
    n, norms = normalised(clip(s, run, KIND), run, tile, context, start, KIND)
    there = (start + tl.arange(0, KIND.C) < context[1])[None, :]
    if KIND.SPREAD:
        p, stays = spread(n, shift[:, None], lowest[:, None], context[1], run)
        p = tl.where(there & stays, p, 0.0)
    else:
        p = tl.exp2(tl.where(there, logits_of(n, shift[:, None], run, KIND), float("-inf")))
    if KIND.FOCAL:
        p = tl.where(p > least[:, None], p, 0.0)
    return p, n, norms


@triton.jit
def spread(s, greatest, lowest, count, run):
    """(Of similarities n = (s − min) / (max − min), 1 where a query's are equal; whether n is not below the threshold).

    The greatest has 1 whatever a quotient is rounded to.
    """
    width = greatest - lowest
    n = tl.where(s == greatest, 1.0, (s - lowest) / tl.where(width > 0, width, 1.0))
    threshold = run.numbers.threshold
    return n, n >= tl.where(threshold < 0, 1.0 / count.to(tl.float32), threshold)


@triton.jit
def logits_of(n, shift, run, KIND: tl.constexpr):
    """Logits to base 2: exp2 of them is the weight."""
    if KIND.SHIFTED:
        return tl.minimum(bounded(n * run.numbers.lambda_softmax, MOST_LOGIT) - shift, 0.0) * LOG2_E
    return n * (run.numbers.lambda_softmax * LOG2_E)


@triton.jit
def gram_cells(grams, item, run, row, column, KIND: tl.constexpr):
    """Places of a block (C, C) of an item's Gram matrix, which consists of whole blocks."""
    C: tl.constexpr = KIND.C
    pitch = decoded(run.sizes.gram_blocks) * C
    c = tl.arange(0, C)
    return grams + (int64(item) * pitch + row) * pitch + column + (c[:, None] * pitch + c[None, :])


@triton.jit
def weighted_grams(run, tile, item, context, start, p, limits, KIND: tl.constexpr):
    """G p of C contexts from `start` on, of weights p; the weights of WIDE items' other blocks are computed again."""
    block = tl.load(gram_cells(run.grams, item, run, start, start, KIND))
    products = tl.dot(p, block, input_precision=KIND.FINE)
    if KIND.WIDE:
        for other in range(0, context[1], KIND.C):
            if other != start:
                s = similarities(run, tile, context, other, KIND)
                other_p, _n, _norms = context_weights(s, run, tile, context, other, limits, KIND)
                block = tl.load(gram_cells(run.grams, item, run, other, start, KIND))
                products = tl.dot(other_p, block, products, input_precision=KIND.FINE)
    return products


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
        product_factors = tl.minimum(tl.where(lengths != 0, 1.0 / denominators, 0.0), MOST_FACTOR)
        moves = (lengths != 0) & (lengths >= totals * EPS) & (squares > 0)
        square_factors = bounded(tl.where(moves, relevances / tl.maximum(squares, TINY), 0.0), MOST_FACTOR)
        tl.store(places + OF_PRODUCTS * decoded(run.sizes.kept_plane), product_factors, mask=here)
        tl.store(places + OF_SQUARES * decoded(run.sizes.kept_plane), square_factors, mask=here)


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
    lane = tl.arange(0, 1)
    d = tl.arange(0, KIND.WIDTH)
    rows = row + lane
    here = lane == 0
    places = run.kept + int64(item) * decoded(run.sizes.kept_pitch) + rows
    query_lengths, query_scales = counted_lengths(run.queries, rows, here, KIND)
    shift = tl.full((1,), 0, tl.float32)
    if KIND.SHIFTED:
        shift = tl.load(places + SHIFT * decoded(run.sizes.kept_plane))
    vector = tl.full((KIND.WIDTH,), 0, tl.float32)
    totals = tl.full((1,), 0, tl.float32)
    context, n_contexts = item_of(run.contexts, item)
    for c in range(0, n_contexts):
        _lengths, scales = row_lengths(run.contexts, context + c + lane, here, KIND)
        columns = (0 if KIND.LISTED else context) + c + lane
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
        vector += p * scales * x
        totals += p
    q = tl.load(run.queries.rows + int64(row) * KIND.D + d, mask=d < KIND.D, other=0.0).to(tl.float32)
    products, squares = tl.sum(vector * q) * query_scales, tl.sum(vector * vector) + shift * 0.0
    store_relevances(run, places, here, products, squares, totals, query_lengths, here == 0, KIND)
