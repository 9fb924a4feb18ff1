"""Triton kernels of features' gradients, from those of similarities that `long_backward` leaves (kernels.md §2).

Every sum is taken by one program, in the order of the tiles or of the sorted pairs.
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_long_attention import (
    extent,
    item_at,
    item_features,
    row_scales,
)
from crossret_kernels.triton_tiles import block_slots, row_offsets


@triton.jit
def run_of_units(begins, item, first_pair, n_partners, WHOLE: tl.constexpr):
    """(first, last) of the partners of a tile or, where WHOLE, of the chunk's pairs that an item has."""
    if WHOLE:
        first = tl.maximum(tl.load(begins + item) - first_pair, 0)
        last = tl.minimum(tl.load(begins + item + 1) - first_pair, n_partners)
    else:
        first = item * 0
        last = item * 0 + n_partners
    return first, last


@triton.jit(do_not_specialize=["first_tile", "n_query_tiles", "first_pair"])
def item_gram_gradients(
    context_norms, context_items, context_counts, context_firsts, context_lengths, begins,
    weights, relevances, used, sums, gram_columns, first_tile, n_query_tiles, first_pair, rows, columns,
    WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, ITEMS: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    FINE: tl.constexpr,
):  # fmt: skip
    """∂L/∂G + its transpose: Σ 2 ∂L/∂‖a‖² p pᵀ of every item over all units, by slots as its Gram matrix is.

    Program (tile, b, k) makes block (b, k) of M by M of every item of a tile. Those of a listed item stand where the
    first of its units does.
    """
    local = tl.program_id(0).to(tl.int64)
    tile = first_tile + local
    first_unit, last_unit = run_of_units(begins, tile, first_pair, n_query_tiles, WHOLE)
    n_items, _ = extent(context_items, context_counts, context_lengths, tile, ITEMS, WHOLE)
    row = tl.program_id(1) * M + tl.arange(0, M)
    other = tl.program_id(2) * M + tl.arange(0, M)
    sums += (first_unit if WHOLE else local) * rows * gram_columns
    first = 0
    for place in range(n_items):
        item, count = item_at(context_items, context_counts, context_lengths, tile, place, ITEMS, WHOLE)
        if (tl.max(row) - M + 1 < count) & (tl.max(other) - M + 1 < count) & (first_unit < last_unit):
            total = tl.zeros((M, M), tl.float32)
            for index in range(first_unit, last_unit):
                unit = index if WHOLE else local * n_query_tiles + index
                n_columns = tl.load(used + unit)
                p = weights + (unit * rows + first) * columns
                factors = relevances + (unit * 4 * ITEMS + 2 * ITEMS + place) * columns
                for start in range(0, n_columns, STEP):
                    column = start + tl.arange(0, STEP)
                    taken = column < n_columns
                    cells = row[:, None] * columns + column[None, :]
                    left = tl.load(p + cells, mask=(row < count)[:, None] & taken[None, :], other=0.0)
                    cells = other[:, None] * columns + column[None, :]
                    right = tl.load(p + cells, mask=(other < count)[:, None] & taken[None, :], other=0.0)
                    left = left * tl.load(factors + column, mask=taken, other=0.0)[None, :]
                    total = tl.dot(left, tl.trans(right), total, input_precision=FINE)
            if NORMALIZE:
                begin = context_norms + tl.load(context_firsts + item)
                scales = row_scales(tl.load(begin + row, mask=row < count, other=0.0), NORMALIZE)
                others = row_scales(tl.load(begin + other, mask=other < count, other=0.0), NORMALIZE)
                total = total * scales[:, None] * others[None, :]
            places = (first + row)[:, None].to(tl.int64) * gram_columns + other[None, :]
            tl.store(sums + places, total, mask=(row < count)[:, None] & (other < count)[None, :])
        first += count


@triton.jit(do_not_specialize=["first_tile", "n_query_tiles", "first_pair"])
def add_gram_products(
    contexts, context_norms, context_items, context_counts, context_firsts, context_lengths,
    context_per_item, context_item_stride, context_row_stride, begins, grams, sums,
    gram_columns, first_tile, n_query_tiles, first_pair, rows, D,
    WHOLE: tl.constexpr, SLOTS: tl.constexpr, ITEMS: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    WIDTH: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Adds to `sums` the contexts' gradients by way of their Gram matrices', as `item_gram_gradients` leaves those.

    Program (tile, b, w) adds to WIDTH columns of block b of M rows of every item of a tile.
    """
    local = tl.program_id(0).to(tl.int64)
    tile = first_tile + local
    first_unit, last_unit = run_of_units(begins, tile, first_pair, n_query_tiles, WHOLE)
    n_items, _ = extent(context_items, context_counts, context_lengths, tile, ITEMS, WHOLE)
    row = tl.program_id(1) * M + tl.arange(0, M)
    feature = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    known = (feature < D)[None, :]
    grams += (first_unit if WHOLE else local) * rows * gram_columns
    first = 0
    for place in range(n_items):
        item, count = item_at(context_items, context_counts, context_lengths, tile, place, ITEMS, WHOLE)
        if (tl.program_id(1) * M < count) & (first_unit < last_unit):
            begin = tl.load(context_firsts + item)
            total = tl.zeros((M, WIDTH), tl.float32)
            for k in range(0, count, STEP):
                other = k + tl.arange(0, STEP)
                g = tl.load(
                    grams + (first + row)[:, None].to(tl.int64) * gram_columns + other[None, :],
                    mask=(row < count)[:, None] & (other < count)[None, :], other=0.0,
                )  # fmt: skip
                c, _scales = item_features(
                    contexts, context_norms, begin, other, count, feature, known, context_per_item,
                    context_item_stride, context_row_stride, False,
                )  # fmt: skip
                total = tl.dot(g, c, total, input_precision=FINE)
            target = local * rows + first + row if SLOTS else begin + row
            cells = sums + target.to(tl.int64)[:, None] * D + feature[None, :]
            mask = (row < count)[:, None] & known
            tl.store(cells, tl.load(cells, mask=mask, other=0.0).to(tl.float32) + total, mask=mask)
        first += count


@triton.jit(
    do_not_specialize=["first_tile", "first_partner_tile", "n_partners", "first_pair", "own_unit_stride", "unit_stride"]
)
def long_feature_gradients(
    own, own_rows, own_owners, own_firsts, own_lengths, own_per_item, own_item_stride, own_row_stride,
    partners, partner_rows, partner_owners, partner_firsts, partner_lengths, partner_per_item, partner_item_stride,
    partner_row_stride, partner_norms, partner_items, begins, gradients, factors, used, sums,
    first_tile, first_partner_tile, n_partners, first_pair, own_unit_stride, unit_stride, own_size, partner_size,
    own_stride, partner_stride, D,
    OWN_CONTEXTS: tl.constexpr, WHOLE: tl.constexpr, SLOTS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    WIDTH: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """Adds to `sums` what one side's rows get of the similarities' gradients, and queries of their own rows.

    Program (tile, b, w) adds to WIDTH columns of block b of M of a tile's slots, from all units of its partners, N of
    their slots at a time. A unit's cells lie `own_stride` and `partner_stride` apart by slots of either side. Of listed
    pairs, sorted by the own side's items, `begins` says where each item's begin and `partner_items` with whom.
    """
    local = tl.program_id(0).to(tl.int64)
    tile = first_tile + local
    slot = tl.program_id(1) * M + tl.arange(0, M)
    column = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    known = (column < D)[None, :]
    first, last = run_of_units(begins, tile, first_pair, n_partners, WHOLE)
    rows, owners = block_slots(
        own_rows, own_owners, own_firsts, own_lengths, tile, own_size, tl.program_id(1) * M, M, WHOLE
    )
    if (first < last) & (tl.max(owners) >= 0):
        total = tl.zeros((M, WIDTH), tl.float32)
        factor = tl.zeros((M,), tl.float32)
        for index in range(first, last):
            if WHOLE:
                unit = index
                partner = tl.load(partner_items + first_pair + index)
            else:
                unit = local * own_unit_stride + index * unit_stride
                partner = first_partner_tile + index
            if tl.load(used + unit) > 0:
                cells = gradients + unit * own_size * partner_size
                if not OWN_CONTEXTS:
                    factor += tl.load(factors + unit * own_size + slot, mask=owners >= 0, other=0.0)
                for start in range(0, partner_size, N):
                    theirs, their_owners = block_slots(
                        partner_rows, partner_owners, partner_firsts, partner_lengths, partner, partner_size, start, N,
                        WHOLE,
                    )  # fmt: skip
                    offsets = row_offsets(theirs, partner_per_item, partner_item_stride, partner_row_stride)
                    # A row that is not finite has norm 0 and is not read: 0 × NaN would reach pairs without a gradient.
                    finite = (their_owners >= 0) & (tl.load(partner_norms + theirs) != 0)
                    features = tl.load(
                        partners + offsets[:, None] + column[None, :], mask=finite[:, None] & known, other=0.0
                    )
                    their_slot = start + tl.arange(0, N)
                    g = tl.load(
                        cells + slot[:, None] * own_stride + their_slot[None, :] * partner_stride,
                        mask=(owners >= 0)[:, None] & (their_owners >= 0)[None, :], other=0.0,
                    )  # fmt: skip
                    if partners.dtype.element_ty == tl.bfloat16:
                        g = g.to(tl.bfloat16)
                    else:
                        features = features.to(tl.float32)
                    total = tl.dot(g, features, total, input_precision=MAIN)
        if not OWN_CONTEXTS:
            offsets = row_offsets(rows, own_per_item, own_item_stride, own_row_stride)
            features = tl.load(own + offsets[:, None] + column[None, :], mask=known, other=0.0).to(tl.float32)
            # A row that is not finite has NaN from its similarities already.
            total += factor[:, None] * tl.where(tl.abs(features) < float("inf"), features, 0.0)
        target = local * own_size + slot if SLOTS else rows
        places = sums + target.to(tl.int64)[:, None] * D + column[None, :]
        mask = (owners >= 0)[:, None] & known
        tl.store(places, tl.load(places, mask=mask, other=0.0).to(tl.float32) + total, mask=mask)
