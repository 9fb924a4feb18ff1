"""Rows of a side in Triton: where they lie, and their norms."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from crossret_kernels.gpu.triton_tiles import decoded, inverse


class NormKind(NamedTuple):
    D: int
    UNIT: int
    ROWS: int
    K: int


@triton.jit
def item_rows(side, item, sizes, UNIT: tl.constexpr):
    """(Number of the first row, where that begins among the elements, how many rows) of a side's items.

    Elements are counted in 64 bits. An item without rows has one to be read, which is nobody's or another's.
    """
    slots, most = decoded(sizes.slots), decoded(sizes.most)
    item = item.to(tl.int64)
    zeros = item * 0  # masks are of their pointers' shape
    packed, has_lengths = zeros == slots, zeros < decoded(sizes.has_lengths)
    start = tl.load(side.extents + item, mask=has_lengths, other=0)
    end = tl.load(side.extents + item + 1, mask=packed, other=0)
    count = tl.where(packed, end - start, tl.where(has_lengths, start, most))
    count = tl.minimum(tl.maximum(count, 0), most).to(tl.int32)
    before = tl.where(packed, tl.minimum(tl.maximum(start, 0), decoded(sizes.n_rows) - 1), 0)
    begin = (item * decoded(sizes.item) + before * decoded(sizes.row)) * UNIT
    return tl.where(packed, before, item * slots).to(tl.int32), begin, count


@triton.jit(do_not_specialize=["sizes"])
def inverse_norms(features, norms, sizes, KIND: tl.constexpr):
    """1 / ‖x‖ of every row of a side.

    0 where it is not finite, scores are NaN there by similarities, and where its inverse may not be.
    """
    ROWS: tl.constexpr = KIND.ROWS
    K: tl.constexpr = KIND.K
    n_rows = decoded(sizes.n_rows)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item = row // tl.where(decoded(sizes.slots) == 0, n_rows, decoded(sizes.slots))
    place = (row - item * decoded(sizes.slots)).to(tl.int64)
    column = tl.arange(0, K)
    begins = (item.to(tl.int64) * decoded(sizes.item) + place * decoded(sizes.row)) * KIND.UNIT
    cells = features + begins[:, None] + column[None, :]
    inside = (row < n_rows)[:, None]
    largest = tl.full((ROWS,), 0, tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
    scale = tl.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    squares = tl.full((ROWS,), 0, tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        x = x / scale[:, None]
        squares += tl.sum(x * x, 1)
    norm = scale * tl.sqrt(squares)
    norm = tl.where((norm >= 2.0**-126) & (norm < float("inf")), norm, 0.0)
    tl.store(norms + row, inverse(norm), mask=row < n_rows)
