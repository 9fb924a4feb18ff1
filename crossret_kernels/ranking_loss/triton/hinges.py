"""Hinges of a tile of scores in Triton and their statistics, by negatives in the order of `options.NEGATIVES`.

Statistics of a row or column are three numbers. Hardest (0): the greatest hinge and its place, −1 where none is
positive. Sum (1): sum and count of the hinges. Softmax (2): the greatest M, Σ (h / M)ᵖ and Σ (h / M)ᵖ⁻¹.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from crossret_kernels.gpu.triton_scores import ScoreMatrix, positive_pairs, tile_places

LONGEST_PRODUCT = 64  # largest order p whose powers are products
NOWHERE = tl.constexpr(2**30)  # no place of a hinge
LEAST = tl.constexpr(1.17549435e-38)  # least normal number


class HingeKind(NamedTuple):
    """Compile-time constants; SLOPE is p − 1 where its powers are products, else −1."""

    IMAGE_IDS: bool
    CAPTION_IDS: bool
    NEGATIVES: int
    SLOPE: int

    @classmethod
    def of(cls, matrix: ScoreMatrix, negatives: int, p: float) -> HingeKind:
        is_product = negatives == 2 and p <= LONGEST_PRODUCT and p == int(p)
        return cls(*matrix.has_ids, negatives, int(p) - 1 if is_product else -1)


@triton.jit
def ordered(hinges):
    """int32 in the order of hinges, none of which is negative; NaN is greatest."""
    return tl.where(hinges == hinges, hinges.to(tl.int32, bitcast=True), 0x7FFFFFFF)


@triton.jit
def scaled(hinges, scale, slope, SLOPE: tl.constexpr):
    """(h / scale, its power of p − 1), both 0 where h is 0; no hinge exceeds the scale but for rounding.

    Division rounds to nearest, so that equals have the quotient 1, whatever the power.
    """
    if SLOPE >= 0:
        scale = tl.where(scale < LEAST, LEAST, scale)
        x = hinges * tl.div_rn(scale * 0.0 + 1.0, scale)
    else:
        x = tl.div_rn(hinges, tl.where(scale == 0.0, 1.0, scale) + tl.zeros_like(hinges))
    ratios = tl.where(hinges == 0.0, 0.0, tl.where(x > 1.0, 1.0, x))
    if SLOPE >= 0:
        powers = tl.where(hinges == 0.0, 0.0, 1.0)
        square = ratios
        for bit in tl.static_range(6):
            if (SLOPE >> bit) % 2 == 1:
                powers = powers * square
            square = square * square
    else:
        powers = tl.where(ratios == 0.0, 0.0, tl.exp2(tl.log2(tl.where(ratios == 0.0, 1.0, ratios)) * slope))
    return ratios, powers


@triton.jit
def no_statistics(N: tl.constexpr, NEGATIVES: tl.constexpr):
    """Statistics of no hinges, (N,)."""
    zeros = tl.full((N,), 0, tl.float32)
    return zeros, tl.full((N,), NOWHERE, tl.int32) if NEGATIVES == 0 else zeros, zeros


@triton.jit
def reduced(statistics, slope, axis: tl.constexpr, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics merged along an axis; places are int32."""
    a, b, c = statistics
    if NEGATIVES == 1:
        out_a, out_b, out_c = tl.sum(a, axis), tl.sum(b, axis), tl.sum(c, axis)
    else:
        order = ordered(a)
        top = tl.max(order, axis)
        out_a = top.to(tl.float32, bitcast=True)
        if NEGATIVES == 0:
            is_top = (order == tl.expand_dims(top, axis)) & (order > 0)
            out_b, out_c = tl.min(tl.where(is_top, b, NOWHERE), axis), out_a
        else:
            ratios, powers = scaled(a, tl.expand_dims(out_a, axis), slope, SLOPE)
            out_b, out_c = tl.sum(b * ratios * powers, axis), tl.sum(c * powers, axis)
    return out_a, out_b, out_c


@triton.jit
def merged(first, later, slope, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics of two parts of a row or column."""
    a, b, c = first
    later_a, later_b, later_c = later
    if NEGATIVES == 1:
        out_a, out_b, out_c = a + later_a, b + later_b, c + later_c
    else:
        larger = ordered(later_a) > ordered(a)
        out_a = tl.where(larger, later_a, a)
        if NEGATIVES == 0:
            out_b, out_c = tl.where(larger, later_b, b), out_a
        else:
            ratios, powers = scaled(a, out_a, slope, SLOPE)
            later_ratios, later_powers = scaled(later_a, out_a, slope, SLOPE)
            out_b = b * ratios * powers + later_b * later_ratios * later_powers
            out_c = c * powers + later_c * later_powers
    return out_a, out_b, out_c


@triton.jit
def load_statistics(at, stride, mask, NEGATIVES: tl.constexpr):
    """Stored statistics; those of no hinges where masked out."""
    b = tl.load(at + stride, mask=mask, other=0.0)
    if NEGATIVES == 0:
        b = tl.where(mask & (b >= 0.0), b.to(tl.int32), NOWHERE)
    return tl.load(at, mask=mask, other=0.0), b, tl.load(at + 2 * stride, mask=mask, other=0.0)


@triton.jit
def store_statistics(at, stride, mask, statistics, NEGATIVES: tl.constexpr):
    a, b, c = statistics
    if NEGATIVES == 0:
        b = tl.where(b == NOWHERE, -1, b).to(tl.float32)
    tl.store(at, a, mask=mask)
    tl.store(at + stride, b, mask=mask)
    tl.store(at + 2 * stride, c, mask=mask)


@triton.jit
def tile_statistics(hinges, places, slope, axis: tl.constexpr, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics of a tile's rows or columns."""
    ones = tl.where(hinges == 0.0, 0.0, 1.0)
    return reduced((hinges, places if NEGATIVES == 0 else ones, ones), slope, axis, NEGATIVES, SLOPE)


@triton.jit
def tile_hinges(
    scores, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset, margin,
    KIND: tl.constexpr,
):  # fmt: skip
    """(Rows, columns, hinges of the rows, hinges of the columns) of the tile that begins at a row and a column.

    Hinges are 0 where a pair is no negative; those of columns also where the column's positive is not in the matrix.
    """
    rows, columns, in_rows, in_columns, _positives, matched = tile_places(row, column, n_rows, n_columns, offset)
    starts = scores + rows.to(tl.int64) * stride
    diagonal = scores + (columns - offset).to(tl.int64) * stride + columns
    inside = in_rows[:, None] & in_columns[None, :]
    s = tl.load(starts[:, None] + columns[None, :], mask=inside, other=0.0)
    row_positives = tl.load(starts + rows + offset, mask=in_rows, other=0.0).to(tl.float32)
    column_positives = tl.load(diagonal, mask=matched, other=0.0).to(tl.float32)
    negative = inside & ~positive_pairs(image_ids, caption_ids, rows, columns, in_rows, in_columns, offset, KIND)
    row_hinges = (margin - row_positives)[:, None] + s.to(tl.float32)
    column_hinges = (margin - column_positives)[None, :] + s.to(tl.float32)
    # NaN is not at most 0: it stays.
    row_hinges = tl.where(negative & ~(row_hinges <= 0.0), row_hinges, 0.0)
    column_hinges = tl.where(negative & matched[None, :] & ~(column_hinges <= 0.0), column_hinges, 0.0)
    return rows, columns, row_hinges, column_hinges
