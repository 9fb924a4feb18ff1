"""Hinges of a tile of scores in Triton and statistics of them, by negatives as `options.NEGATIVES` numbers them.

Statistics of a row or column are three numbers. Hardest (0): the greatest
hinge and its place, −1 where none is positive. Sum (1): the sum and the number of hinges. Softmax (2): their greatest
M, Σ (h / M)ᵖ and Σ (h / M)ᵖ⁻¹.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.tuning import TripletLoss

ROWS, COLUMNS = tl.constexpr(TripletLoss.ROWS), tl.constexpr(TripletLoss.COLUMNS)
LONGEST_PRODUCT = 64  # orders up to which powers are products
NOWHERE = tl.constexpr(2**30)  # no place of a hinge
LEAST = tl.constexpr(1.17549435e-38)  # normal number


class Kind(NamedTuple):
    """What kernels over tiles are compiled for; SLOPE is p − 1 where its powers are products, else −1."""

    IMAGE_IDS: bool
    CAPTION_IDS: bool
    NEGATIVES: int
    SLOPE: int


def kind_of(image_ids: Tensor | None, caption_ids: Tensor | None, negatives: int, p: float) -> Kind:
    whole = negatives == 2 and p <= LONGEST_PRODUCT and p == int(p)
    return Kind(image_ids is not None, caption_ids is not None, negatives, int(p) - 1 if whole else -1)


def key_of(scores: Tensor) -> Hashable:
    """What compiled kernels depend on beside their kind."""
    return scores.device, scores.dtype, scores.stride(0) >= 2**31


@triton.jit
def ordered(hinges):
    """int32 that are ordered as hinges, which are not negative, are; NaN is greatest."""
    return tl.where(hinges == hinges, hinges.to(tl.int32, bitcast=True), 0x7FFFFFFF)


@triton.jit
def scaled(hinges, scale, slope, SLOPE: tl.constexpr):
    """(h / scale, its power to the slope), both 0 where a hinge is; the scale is at least the hinges but for rounding.

    Large powers show how 1 / scale is rounded: equals are to have a quotient of 1.
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
def reduced(a, b, c, slope, axis: tl.constexpr, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics brought together over an axis; places are int32."""
    if NEGATIVES == 1:
        out_a, out_b, out_c = tl.sum(a, axis), tl.sum(b, axis), tl.sum(c, axis)
    else:
        order = ordered(a)
        top = tl.max(order, axis)
        out_a = top.to(tl.float32, bitcast=True)
        if NEGATIVES == 0:
            found = (order == tl.expand_dims(top, axis)) & (order > 0)
            out_b, out_c = tl.min(tl.where(found, b, NOWHERE), axis), out_a
        else:
            ratios, powers = scaled(a, tl.expand_dims(out_a, axis), slope, SLOPE)
            out_b, out_c = tl.sum(b * ratios * powers, axis), tl.sum(c * powers, axis)
    return out_a, out_b, out_c


@triton.jit
def merged(a, b, c, later_a, later_b, later_c, slope, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics with those of later places."""
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
    """Kept ones, of nothing where masked."""
    b = tl.load(at + stride, mask=mask, other=0.0)
    if NEGATIVES == 0:
        b = tl.where(mask & (b >= 0.0), b.to(tl.int32), NOWHERE)
    return tl.load(at, mask=mask, other=0.0), b, tl.load(at + 2 * stride, mask=mask, other=0.0)


@triton.jit
def store_statistics(at, stride, mask, a, b, c, NEGATIVES: tl.constexpr):
    if NEGATIVES == 0:
        b = tl.where(b == NOWHERE, -1, b).to(tl.float32)
    tl.store(at, a, mask=mask)
    tl.store(at + stride, b, mask=mask)
    tl.store(at + 2 * stride, c, mask=mask)


@triton.jit
def of_hinges(hinges, places, slope, axis: tl.constexpr, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """Statistics of a tile's rows or columns."""
    ones = tl.where(hinges == 0.0, 0.0, 1.0)
    return reduced(hinges, places if NEGATIVES == 0 else ones, ones, slope, axis, NEGATIVES, SLOPE)


@triton.jit
def tile_hinges(
    scores, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset, margin,
    KIND: tl.constexpr,
):  # fmt: skip
    """Of the tile that begins at a row and a column: its rows, its columns, hinges of rows, hinges of columns.

    Hinges are 0 where no negatives meet; those of columns also where the column's positive is not here.
    """
    rows = row + tl.arange(0, ROWS)
    columns = column + tl.arange(0, COLUMNS)
    in_rows = rows < n_rows
    in_columns = columns < n_columns
    matched = (columns >= offset) & (columns < offset + n_rows)
    starts = scores + rows.to(tl.int64) * stride
    diagonal = scores + (columns - offset).to(tl.int64) * stride + columns
    s = tl.load(starts[:, None] + columns[None, :], mask=in_rows[:, None] & in_columns[None, :], other=0.0)
    of_rows = tl.load(starts + rows + offset, mask=in_rows, other=0.0).to(tl.float32)
    of_columns = tl.load(diagonal, mask=matched, other=0.0).to(tl.float32)
    negative = in_rows[:, None] & in_columns[None, :] & (columns[None, :] != rows[:, None] + offset)
    if KIND.IMAGE_IDS:
        own = tl.load(image_ids + rows + offset, mask=in_rows, other=0)
        negative &= own[:, None] != tl.load(image_ids + columns, mask=in_columns, other=0)[None, :]
    if KIND.CAPTION_IDS:
        own = tl.load(caption_ids + rows + offset, mask=in_rows, other=0)
        negative &= own[:, None] != tl.load(caption_ids + columns, mask=in_columns, other=0)[None, :]
    row_hinges = (margin - of_rows)[:, None] + s.to(tl.float32)
    column_hinges = (margin - of_columns)[None, :] + s.to(tl.float32)
    # NaN is not at most 0: it stays.
    row_hinges = tl.where(negative & ~(row_hinges <= 0.0), row_hinges, 0.0)
    column_hinges = tl.where(negative & matched[None, :] & ~(column_hinges <= 0.0), column_hinges, 0.0)
    return rows, columns, row_hinges, column_hinges
