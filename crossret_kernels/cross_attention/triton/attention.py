"""Stacked cross attention of one tile in Triton: queries of whole items by contexts of one item (kernels.md §1).

Queries are a tile's rows and contexts its columns, in both directions. MAIN is the precision of products of features,
FINE that of the products after them. What each item of queries has of a context is shared out, and summed up, by
products with a 0/1 matrix, so that items of any lengths stand in a tile side by side; all that passes through them is
finite, as `pack` sees to.
"""

import triton
import triton.language as tl

from crossret_kernels.triton_tiles import bounded, inverse, product, share_left

# Constants stand right of what they multiply: the interpreters of Triton 3.7 and 3.8 take them nowhere else.
EPS = tl.constexpr(1e-8)  # of the published code: added to norms after the root, and the cosine's least denominator
MOST_LOGIT = tl.constexpr(3.4e38)  # so that no difference to the greatest is ∞ − ∞, however large λ is
MOST_COSINE = tl.constexpr(2.0)
MOST_FACTOR = tl.constexpr(1e30)  # what factors of gradients are held within, so that 0/1 products meet no 0 × ∞
# Below this part of what orthogonal contexts would make it, pᵀGp is a small difference of large terms.
CANCELLED = tl.constexpr(0.25)
TINY = tl.constexpr(1.1754944e-38)  # the least float32 of full precision
# exp(x) is exp2(x log₂e): exp2 takes one instruction, exp five.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def wide(index):
    """As int64; the interpreter's loop variables are Python's integers."""
    return tl.full((), 0, tl.int64) + index


@triton.jit
def query_tile(number, tiles, queries, sizes, N: tl.constexpr, LONG: tl.constexpr, LISTED: tl.constexpr):
    """(first item of a run, how many there are, first row, how many, column of S where they begin) of a tile.

    Tiles hold whole items, or LONG a piece of one. Those of listed pairs hold one pair's.
    """
    if LISTED:
        item = number // sizes.pieces
        start = number % sizes.pieces * N
        row = item * sizes.query_slots + start
        n_rows = tl.load(queries.items + 2 * item + 1) - start
        return item, 1, row, tl.maximum(tl.minimum(n_rows, N), 0), start
    run = tiles + 2 * sizes.first_tile
    tile = run + 2 * number
    row = tl.load(tile) - tl.load(run)
    item = tl.load(tile + 1)
    n_items = 1 if LONG else tl.load(tile + 3) - item
    return item - tl.load(run + 1), n_items, row, tl.load(tile + 2) - tl.load(tile), row


@triton.jit
def membership(rows, queries, first_item, n_items, G: tl.constexpr):
    """(rows, G): 1 where the row is one of the item's, else 0."""
    g = tl.arange(0, G)
    items = queries.items + 2 * (first_item + g)
    first = tl.load(items, mask=g < n_items, other=0)
    count = tl.load(items + 1, mask=g < n_items, other=0)
    return ((rows[:, None] >= first[None, :]) & (rows[:, None] < (first + count)[None, :])).to(tl.float32)


@triton.jit
def row_lengths(side, rows, inside, NORMALIZE: tl.constexpr):
    """(‖x‖ of packed rows as attention sees them, what S is to be multiplied by); 0 of rows that are not there.

    Rows that were not finite are zeros in the run, and NaN among its norms.
    """
    norms = tl.load(side.norms + rows, mask=inside, other=0.0)
    norms = tl.where(norms == norms, norms, 0.0)
    if NORMALIZE:
        return (norms != 0).to(tl.float32), inverse(norms)
    return norms, tl.where(inside, 1.0, 0.0)


@triton.jit
def similarities(
    S, pitch, contexts, queries, context_rows, query_rows, column, inside, context_scales, query_scales,
    NORMALIZE: tl.constexpr, FUSED: tl.constexpr, D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    MAIN: tl.constexpr,
):  # fmt: skip
    """(N, C) of a tile's queries, which stand in S from `column` on, and contexts; 0 where one is not there.

    FUSED multiplies the packed rows, of which those that are not there repeat others; else S holds the products.
    """
    if FUSED:
        of_queries, of_contexts = query_rows.to(tl.int64) * D, context_rows.to(tl.int64) * D
        s = product(queries.rows, of_queries, contexts.rows, of_contexts, D, N, C, K, True, MAIN)
        s = tl.where(inside, s, 0.0)
    else:
        cells = context_rows.to(tl.int64)[None, :] * pitch + column + tl.arange(0, N)[:, None]
        s = tl.load(S + cells, mask=inside, other=0.0)
    if NORMALIZE:
        s = s * query_scales[:, None] * context_scales[None, :]
    return s


@triton.jit
def clip(s, slope, CLIPS: tl.constexpr):
    return tl.where(s > 0, s, slope * s) if CLIPS else s


@triton.jit
def norm_factors(norms):
    """1 / (norm + ε); norms are 0 or from 1e-19 to 1e17, so that the square is in range."""
    return tl.rsqrt((norms + EPS) * (norms + EPS))


@triton.jit
def item_sums(x, members, FINE: tl.constexpr):
    """Sums over each item's rows, (G, columns)."""
    return share_left(tl.trans(members), x, FINE)


@triton.jit
def normalised(
    x, members, first_item, n_items, rows, queries, statistics, plane,
    NORM: tl.constexpr, LONG: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """(n (N, C): similarities normalised along each item's queries, for each context; the norms (G, C)).

    Of LONG items `statistics` point to what `query_statistics` found of all their queries.
    """
    norms = tl.zeros((members.shape[1], x.shape[1]), tl.float32)
    n = x
    if NORM == "softmax":
        if LONG:
            sums = tl.load(statistics)[None, :] + norms
            shift = tl.load(statistics + plane)[None, :] + tl.zeros_like(x)
            shift = tl.where(tl.sum(members, 1)[:, None] > 0, shift, x)
        else:
            shift = x
            for place in range(n_items):
                item = queries.items + 2 * (first_item + place)
                first = tl.load(item)
                inside = ((rows >= first) & (rows < first + tl.load(item + 1)))[:, None]
                shift = tl.where(inside, tl.max(tl.where(inside, x, float("-inf")), 0)[None, :], shift)
        e = tl.exp2((x - shift) * LOG2_E)
        if not LONG:
            sums = item_sums(e, members, FINE)
        n = e * share_left(members, inverse(sums), FINE)
    elif NORM != "none":
        if LONG:
            norms = tl.load(statistics)[None, :] + norms
        elif NORM == "l1norm":
            norms = item_sums(tl.abs(x), members, FINE)
        else:
            norms = tl.sqrt(item_sums(x * x, members, FINE))
        n = x * share_left(members, norm_factors(norms), FINE)
    return n, norms


@triton.jit
def exponentials(n, inside, shift, lambda_softmax, SHIFTED: tl.constexpr):
    """p = exp(λn) up to a factor that each query's contexts share, (N, C); 0 of contexts that are not there.

    SHIFTED takes the greatest logit out. It can stay where |λn| is at most 20: exp(±20) squared keeps its digits.
    """
    if SHIFTED:
        p = tl.exp2((bounded(n * lambda_softmax, MOST_LOGIT) - shift[:, None]) * LOG2_E)
    else:
        p = tl.exp2(n * (lambda_softmax * LOG2_E))
    return tl.where(inside, p, 0.0)


@triton.jit
def gram_block(grams, item, pitch, row, column, C: tl.constexpr):
    """(C, C) of an item's Gram matrix, zero beyond it."""
    r = row + tl.arange(0, C)
    c = column + tl.arange(0, C)
    cells = grams + wide(item) * pitch * pitch + r[:, None] * pitch + c[None, :]
    return tl.load(cells, mask=(r < pitch)[:, None] & (c < pitch)[None, :], other=0.0)


@triton.jit
def context_weights(
    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, start, shift, members, query_lengths,
    query_scales,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMALIZE: tl.constexpr, LONG: tl.constexpr,
    FUSED: tl.constexpr, D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, K: tl.constexpr, MAIN: tl.constexpr,
    FINE: tl.constexpr,
):  # fmt: skip
    """C contexts of an item from `start` on: (s, n, norms, p, contexts' lengths, their scales)."""
    first_item, n_items, row, n_rows, column = tile
    first, count = context
    c = start + tl.arange(0, C)
    j = tl.arange(0, N)
    there = c < count
    inside = (j < n_rows)[:, None] & there[None, :]
    context_rows = first + tl.minimum(c, tl.maximum(count - 1, 0))
    query_rows = row + tl.minimum(j, tl.maximum(n_rows - 1, 0))
    lengths, scales = row_lengths(contexts, context_rows, there, NORMALIZE)
    s = similarities(
        S, sizes.pitch * 16, contexts, queries, context_rows, query_rows, column, inside, scales, query_scales,
        NORMALIZE, FUSED, D, N, C, K, MAIN,
    )  # fmt: skip
    of_rows = statistics + context_rows.to(tl.int64) * sizes.n_queries + first_item
    n, norms = normalised(
        clip(s, numbers.slope, CLIPS), members, first_item, n_items, row + j, queries, of_rows, sizes.plane,
        NORM, LONG, FINE,
    )  # fmt: skip
    p = exponentials(n, there[None, :], shift, numbers.lambda_softmax, SHIFTED)
    return s, n, norms, p, lengths, scales
