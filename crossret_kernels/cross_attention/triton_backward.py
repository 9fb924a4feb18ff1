"""Triton kernels of stacked cross attention's gradients (kernels.md §2): of similarities, then of features.

`scan_backward` recomputes tiles and leaves blocks: the gradients of their similarities, what those of the contexts'
Gram matrices are made of (`gram_gradients`) and what each query gets of its own row. `feature_gradients` turns them
into gradients of one side's rows. Blocks without a gradient are left out (`filled_blocks`).
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_attention import (
    EPS,
    MOST,
    TINY,
    clip,
    first_column,
    item_grams,
    least_length,
    norm_factors,
    pooled_exponentials,
    query_softmax,
    similarity_norms,
    tile_relevances,
    tile_similarities,
)
from crossret_kernels.triton_tiles import (
    bounded,
    grouped,
    inverse,
    item_slots,
    membership,
    row_offsets,
    sum_columns,
    sum_rows,
    tile_items,
    to_columns,
    to_rows,
)

# What gradients of weights and norms are held within, so that 0/1 products never meet 0 × ∞.
MOST_GRADIENT = tl.constexpr(1e20)
MOST_FACTOR = tl.constexpr(1e30)
LEAST_NORM = tl.constexpr(1e-18)  # whose square is in range


@triton.jit
def relevance_gradients(
    relevances, pair_gradients, query_members, query_owners, query_counts, n_query_items, lambda_lse,
    POOLING: tl.constexpr, SHIFTED: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """∂L/∂r (context items, N) from the gradients of pairs' scores (context items, query items)."""
    if POOLING == "lse":
        e, _ = pooled_exponentials(relevances, query_owners, n_query_items, lambda_lse, SHIFTED)
        return e * to_columns(pair_gradients * inverse(sum_columns(e, query_members, FINE)), query_members, FINE)
    if POOLING == "max":
        place = tl.arange(0, query_counts.shape[0])[None, :]
        column = tl.arange(0, relevances.shape[1])[None, :]
        gradients = tl.zeros_like(relevances)
        for item in range(n_query_items):
            best = first_column(relevances, (query_owners == item)[None, :])
            gradient = tl.sum(tl.where(place == item, pair_gradients, 0.0), 1)
            gradients = tl.where(column == best[:, None], gradient[:, None], gradients)
        return gradients
    if POOLING == "avg":
        pair_gradients = pair_gradients / tl.maximum(query_counts, 1).to(tl.float32)[None, :]
    return to_columns(pair_gradients, query_members, FINE)


@triton.jit
def norm_gradients(
    s, weight_gradients, query_members, query_owners, n_query_items, slope,
    CLIPS: tl.constexpr, NORM: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """∂L/∂s through clip and norm from ∂L/∂n, (M, N)."""
    x = clip(s, slope, CLIPS)
    if NORM == "softmax":
        n = query_softmax(x, query_members, query_owners, n_query_items, FINE)
        along = to_columns(sum_columns(n * weight_gradients, query_members, FINE), query_members, FINE)
        gradients = n * (weight_gradients - along)
    elif NORM == "none":
        gradients = weight_gradients
    else:
        norms = similarity_norms(x, query_members, NORM, FINE)
        factors = tl.where(norms != 0, norm_factors(norms), 0.0)
        along = sum_columns(x * weight_gradients, query_members, FINE) * factors * factors
        if NORM == "l1norm":
            directions = (x > 0).to(tl.float32) - (x < 0).to(tl.float32)
        else:
            directions = x
            lengths = tl.maximum(norms, LEAST_NORM)
            along = along * tl.rsqrt(lengths * lengths)
        gradients = to_columns(factors, query_members, FINE) * weight_gradients
        gradients -= to_columns(bounded(along, MOST_FACTOR), query_members, FINE) * directions
    return gradients * tl.where(s > 0, 1.0, slope) if CLIPS else gradients


@triton.jit(
    do_not_specialize=[
        "score_context_stride",
        "score_query_stride",
        "first_context_tile",
        "first_query_tile",
        "n_context_tiles",
        "n_query_tiles",
        "first_pair",
    ]
)
def scan_backward(
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_lengths, query_per_item, query_item_stride, query_row_stride,
    pairs, order, grams, grad_scores, score_context_stride, score_query_stride,
    similarity_gradients, weights, scaled_weights, query_factors, filled,
    first_context_tile, first_query_tile, n_context_tiles, n_query_tiles, first_pair, D, slope, lambda_softmax,
    lambda_lse,
    CONTEXT_COLUMN: tl.constexpr, WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, POOLING: tl.constexpr, POOL_SHIFTED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CONTEXT_ITEMS: tl.constexpr, QUERY_ITEMS: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """A block of gradients: of the similarities of one tile of contexts and one of queries, or of one listed pair.

    Blocks are numbered by pair in `order`, or by tile of contexts and, within it, of queries. Each has ∂L/∂s (M, N), p
    and p times twice ∂L/∂‖a‖² (M, N), whose product is ∂L/∂G + its transpose, and of every query (N,) what it gets of
    its own row. A block without any gradient stays as it is, and `filled` says so.
    """
    program = tl.program_id(0)
    if WHOLE:
        block = program.to(tl.int64)
        pair = tl.load(order + first_pair + program)
        context_tile = tl.load(pairs + 2 * pair + CONTEXT_COLUMN)
        query_tile = tl.load(pairs + 2 * pair + 1 - CONTEXT_COLUMN)
    else:
        gram_tile, local_query = grouped(program, n_context_tiles, n_query_tiles, 8)
        block = gram_tile.to(tl.int64) * n_query_tiles + local_query
        context_tile = first_context_tile + gram_tile
        query_tile = first_query_tile + local_query
    c_items, _ = tile_items(context_items, context_counts, context_lengths, context_tile, CONTEXT_ITEMS, WHOLE)
    q_items, q_counts = tile_items(query_items, query_counts, query_lengths, query_tile, QUERY_ITEMS, WHOLE)
    known = (c_items >= 0)[:, None] & (q_items >= 0)[None, :]
    if WHOLE:
        places = pair * score_context_stride + tl.zeros((CONTEXT_ITEMS, QUERY_ITEMS), tl.int64)
    else:
        places = c_items[:, None] * score_context_stride + q_items[None, :] * score_query_stride
    pair_gradients = tl.load(grad_scores + places, mask=known, other=0.0).to(tl.float32)
    fill = tl.max((pair_gradients != 0).to(tl.int32))  # of a hardest-negative loss most blocks have none
    tl.store(filled + block, fill)
    if fill != 0:
        n_context_items = tl.sum((c_items >= 0).to(tl.int32))
        n_query_items = tl.sum((q_items >= 0).to(tl.int32))
        c_rows, c_owners = item_slots(
            context_rows, context_owners, context_firsts, context_lengths, context_tile, M, WHOLE
        )  # fmt: skip
        q_rows, q_owners = item_slots(query_rows, query_owners, query_firsts, query_lengths, query_tile, N, WHOLE)
        c_offsets = row_offsets(c_rows, context_per_item, context_item_stride, context_row_stride)
        q_offsets = row_offsets(q_rows, query_per_item, query_item_stride, query_row_stride)
        c_norms = tl.load(context_norms + c_rows)
        q_norms = tl.where(q_owners >= 0, tl.load(query_norms + q_rows), 0.0)
        c_scales = inverse(c_norms) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
        q_scales = inverse(q_norms) if NORMALIZE else tl.full((N,), 1.0, tl.float32)
        c_members = membership(c_owners, CONTEXT_ITEMS)
        q_members = membership(q_owners, QUERY_ITEMS)
        s, broken = tile_similarities(
            contexts, c_offsets, c_scales, c_norms, c_members, queries, q_offsets, q_scales, q_members, D,
            NORMALIZE, M, N, K, EVEN, CONTEXT_ITEMS, QUERY_ITEMS, MAIN, FINE,
        )  # fmt: skip
        if WHOLE:
            tile_grams = item_grams(contexts, c_offsets, c_owners, c_scales, D, M, K, EVEN, MAIN)
        else:
            square = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
            tile_grams = tl.load(grams + gram_tile.to(tl.int64) * M * M + square)
        p, gram_weights, totals, squares, lengths, relevances = tile_relevances(
            s, tile_grams, contexts, c_offsets, c_scales, c_norms, c_members, c_owners, n_context_items,
            queries, q_offsets, q_scales, q_norms, q_members, q_owners, n_query_items, D, slope, lambda_softmax,
            CLIPS, NORM, SHIFTED, N, CONTEXT_ITEMS, FINE,
        )  # fmt: skip
        fine = tl.abs(pair_gradients) < MOST
        broken = tl.where(pair_gradients == 0, 0.0, tl.where(fine, broken, 1.0))
        of_relevances = relevance_gradients(
            relevances, tl.where(fine, pair_gradients, 0.0), q_members, q_owners, q_counts, n_query_items,
            lambda_lse, POOLING, POOL_SHIFTED, FINE,
        )  # fmt: skip
        # ∂L/∂(Σp), which the cosine's floor brings, is the same for all contexts of a query: the softmax drops it.
        pull = tl.where((lengths != 0) & (lengths >= totals * EPS), -of_relevances * relevances, 0.0)
        of_products = tl.where(lengths != 0, of_relevances / least_length(lengths, totals), 0.0)
        of_products = to_rows(bounded(of_products, MOST_FACTOR), c_members, FINE)
        of_squares = tl.where(squares > 0, pull / tl.maximum(squares, TINY), 0.0)  # twice ∂L/∂‖a‖²
        of_squares = to_rows(bounded(of_squares, MOST_FACTOR), c_members, FINE)
        cells = block * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        scaled = p * c_scales[:, None] if NORMALIZE else p
        tl.store(weights + cells, scaled)
        tl.store(scaled_weights + cells, of_squares * scaled)
        of_weights = bounded(of_products * s + of_squares * gram_weights, MOST_GRADIENT)
        # The softmax takes out the mean. It is zero but for rounding, which λ and long features would blow up.
        mean = sum_rows(p * of_weights, c_members, FINE) * inverse(totals)
        of_logits = p * (of_weights - to_rows(mean, c_members, FINE))
        of_similarities = of_products * p + norm_gradients(
            s, bounded(lambda_softmax * of_logits, MOST_GRADIENT), q_members, q_owners, n_query_items, slope,
            CLIPS, NORM, FINE,
        )  # fmt: skip
        own = tl.zeros((N,), tl.float32)  # along the row itself, which a unit row's norm takes out
        if not NORMALIZE:
            shares = 1.0 / tl.maximum(q_norms, TINY)
            own = tl.sum(pull, 0) * shares * shares  # the square itself may be out of range
        if tl.max(broken) > 0:
            spoilt = to_columns(broken, q_members, FINE)
            of_similarities = tl.where(to_rows(spoilt, c_members, FINE) > 0, float("nan"), of_similarities)
            own = tl.where(tl.max(spoilt, 0) > 0, float("nan"), own)
        if NORMALIZE:
            of_similarities = of_similarities * c_scales[:, None] * q_scales[None, :]
        tl.store(similarity_gradients + cells, of_similarities)
        tl.store(query_factors + block * N + tl.arange(0, N), own)


@triton.jit(do_not_specialize=["n_blocks", "tile_stride", "block_stride"])
def filled_blocks(filled, listed, counts, n_blocks, tile_stride, block_stride, SIZE: tl.constexpr):
    """Lists, in order, which of a tile's blocks are filled, and counts them: (tiles, n_blocks) and (tiles,)."""
    tile = tl.program_id(0).to(tl.int64)
    count = 0
    for first in range(0, n_blocks, SIZE):
        index = first + tl.arange(0, SIZE)
        fill = tl.load(filled + tile * tile_stride + index * block_stride, mask=index < n_blocks, other=0)
        places = count + tl.cumsum(fill, 0) - 1
        tl.store(listed + tile * n_blocks + places, index, mask=fill != 0)
        count += tl.sum(fill)
    tl.store(counts + tile, count)


@triton.jit(do_not_specialize=["n_query_tiles"])
def gram_gradients(
    weights, scaled_weights, listed, counts, context_owners, gradients, first_context_tile, n_query_tiles,
    M: tl.constexpr, N: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """∂L/∂G + its transpose of a run of tiles of contexts, (tiles, M, M): over their filled blocks, in order."""
    tile = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, M)
    cells = slot[:, None] * N + tl.arange(0, N)[None, :]
    sums = tl.zeros((M, M), tl.float32)
    for number in range(tl.load(counts + tile)):
        block = tile * n_query_tiles + tl.load(listed + tile * n_query_tiles + number)
        left = tl.load(scaled_weights + block * M * N + cells)
        right = tl.load(weights + block * M * N + cells)
        sums = tl.dot(left, tl.trans(right), sums, input_precision=FINE)
    owners = tl.load(context_owners + (first_context_tile + tile) * M + slot)
    sums = tl.where((owners[:, None] == owners[None, :]) & (owners >= 0)[:, None], sums, 0.0)
    tl.store(gradients + tile * M * M + slot[:, None] * M + slot[None, :], sums)


@triton.jit(do_not_specialize=["first_own_tile", "n_own_tiles", "first_partner_tile", "n_partner_tiles", "first_pair"])
def feature_gradients(
    own, own_rows, own_owners, own_firsts, own_lengths, own_per_item, own_item_stride, own_row_stride,
    partners, partner_rows, partner_owners, partner_firsts, partner_lengths, partner_per_item, partner_item_stride,
    partner_row_stride, partner_norms, partner_items, begins, filled, listed, counts,
    similarity_gradients, weights, scaled_weights, query_factors, of_grams, sums,
    first_own_tile, n_own_tiles, first_partner_tile, n_partner_tiles, first_pair, D,
    OWN_CONTEXTS: tl.constexpr, WHOLE: tl.constexpr, SLOTS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    WIDTH: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Adds to `sums`, (rows, D) or with SLOTS (slots, D), the gradients of one tile's rows in WIDTH of their columns.

    M slots of the tile, N of a partner's; `listed` and `counts` name the tile's filled blocks. Of listed pairs, sorted
    by the tile's items, `begins` says where each item's begin and `partner_items` with whom: `n_partner_tiles` pairs
    from `first_pair` on are in the blocks.
    """
    local = tl.program_id(0).to(tl.int64)
    tile = first_own_tile + local
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    slot = tl.arange(0, M)
    partner_slot = tl.arange(0, N)
    if WHOLE:
        first = tl.maximum(tl.load(begins + tile) - first_pair, 0)
        last = tl.minimum(tl.load(begins + tile + 1) - first_pair, n_partner_tiles)
    else:
        first, last = 0, tl.load(counts + local)
    if first < last:
        rows, owners = item_slots(own_rows, own_owners, own_firsts, own_lengths, tile, M, WHOLE)
        gradients = tl.zeros((M, WIDTH), tl.float32)
        square = tl.zeros((M, M), tl.float32) if OWN_CONTEXTS and WHOLE else 0.0
        factors = tl.zeros((M,), tl.float32)
        for number in range(first, last):
            if WHOLE:
                block = number
                partner = tl.load(partner_items + first_pair + number)
                there = slot < M * tl.load(filled + block)  # others hold whatever the memory held
            else:
                index = tl.load(listed + local * n_partner_tiles + number)
                block = local * n_partner_tiles + index if OWN_CONTEXTS else index.to(tl.int64) * n_own_tiles + local
                partner = first_partner_tile + index
                there = slot < M
            their_rows, _ = item_slots(partner_rows, partner_owners, partner_firsts, partner_lengths, partner, N, WHOLE)
            offsets = row_offsets(their_rows, partner_per_item, partner_item_stride, partner_row_stride)
            # A row that is not finite has norm 0. It is not read: pairs without a gradient would make it 0 × NaN.
            finite = (tl.load(partner_norms + their_rows) != 0)[:, None]
            inside = finite & (column < D)[None, :]
            theirs = tl.load(partners + offsets[:, None] + column[None, :], mask=inside, other=0.0)
            if OWN_CONTEXTS:
                cells = slot[:, None] * N + partner_slot[None, :]
            else:
                cells = partner_slot[None, :] * M + slot[:, None]
                factors += tl.load(query_factors + block * M + slot, mask=there, other=0.0)
            of_similarities = tl.load(similarity_gradients + block * M * N + cells, mask=there[:, None], other=0.0)
            gradients = tl.dot(of_similarities, theirs.to(of_similarities.dtype), gradients, input_precision=MAIN)
            if OWN_CONTEXTS and WHOLE:
                left = tl.load(scaled_weights + block * M * N + cells, mask=there[:, None], other=0.0)
                right = tl.load(weights + block * M * N + cells, mask=there[:, None], other=0.0)
                square = tl.dot(left, tl.trans(right), square, input_precision=FINE)
        offsets = row_offsets(rows, own_per_item, own_item_stride, own_row_stride)
        features = tl.load(own + offsets[:, None] + column[None, :], mask=(column < D)[None, :], other=0.0)
        features = features.to(tl.float32)
        # A row that is not finite has NaN from its similarities already, and must not reach the tile's other items.
        features = tl.where(tl.abs(features) < float("inf"), features, 0.0)
        if OWN_CONTEXTS:
            if WHOLE:
                square = tl.where((owners >= 0)[:, None] & (owners >= 0)[None, :], square, 0.0)
            else:
                square = tl.load(of_grams + local * M * M + slot[:, None] * M + slot[None, :])
            gradients = tl.dot(square, features, gradients, input_precision=FINE)
        else:
            gradients += factors[:, None] * features
        target = local * M + slot if SLOTS else rows
        places = sums + target.to(tl.int64)[:, None] * D + column[None, :]
        mask = (owners >= 0)[:, None] & (column < D)[None, :]
        tl.store(places, tl.load(places, mask=mask, other=0.0).to(tl.float32) + gradients, mask=mask)


@triton.jit(do_not_specialize=["n"])
def finish_rows(
    features, norms, per_item, item_stride, row_stride, slot_rows, slot_owners, sums, gradients, n, D,
    NORMALIZE: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Rounds summed gradients into their rows, through x / ‖x‖ where features were normalised.

    `sums` are of slots where SLOTS, else of rows, and may be the gradients themselves.
    """
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = index < n
    if SLOTS:
        rows = tl.load(slot_rows + index, mask=inside, other=0).to(tl.int64)
        inside = inside & (tl.load(slot_owners + index, mask=inside, other=-1) >= 0)
    else:
        rows = index
    offsets = row_offsets(rows, per_item, item_stride, row_stride)
    scales = inverse(tl.load(norms + rows, mask=inside, other=0.0)) if NORMALIZE else tl.zeros((ROWS,), tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    # A row that is not finite, as padding may be, has norm 0. It is not read: 0 × NaN would be its gradient.
    finite = (scales != 0)[:, None]
    if NORMALIZE:
        for d in range(0, D, K):
            k = d + tl.arange(0, K)
            mask = inside[:, None] & (k < D)[None, :]
            x = tl.load(features + offsets[:, None] + k[None, :], mask=mask & finite, other=0.0).to(tl.float32)
            g = tl.load(sums + index[:, None] * D + k[None, :], mask=mask, other=0.0).to(tl.float32)
            along += tl.sum(x * scales[:, None] * g, 1)
    for d in range(0, D, K):
        k = d + tl.arange(0, K)
        mask = inside[:, None] & (k < D)[None, :]
        g = tl.load(sums + index[:, None] * D + k[None, :], mask=mask, other=0.0).to(tl.float32)
        if NORMALIZE:
            x = tl.load(features + offsets[:, None] + k[None, :], mask=mask & finite, other=0.0).to(tl.float32)
            g -= x * scales[:, None] * along[:, None]
        tl.store(gradients + rows[:, None] * D + k[None, :], g, mask=mask)
