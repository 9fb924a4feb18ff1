"""Rows of a part, packed with their norms for the kernels of stacked cross attention in Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_tiles import decoded
from crossret_kernels.gpu.tuning import Attention

MOST_LENGTH = tl.constexpr(3.1e7)  # from this length on a row is not finite: squares of products stay in range
STEP = tl.constexpr(Attention.STEP)
TOGETHER = tl.constexpr(4)  # contexts of one 16-byte load; every item begins at a multiple of it


class Packed(NamedTuple):
    """Packed rows of one side's part, as kernels read them.

    Attributes:
        rows: (rows, D), D rounded up to `STEP`; zeros in empty slots and in place of rows that were not finite.
        norms: (rows,) float32, NaN where a row was not finite.
        powers: (rows,) float32, the power of two that scaled a row which is to be normalised.
        self_gradients: (rows,) float32, factor of each query row in its own gradient; of the backward pass.
        items: (items, 4) int32: first row, number of rows, flags of contexts (`pooling.NOT_FINITE`), the first row
            among packed features.
    """

    rows: Tensor
    norms: Tensor
    powers: Tensor
    self_gradients: Tensor
    items: Tensor


class RowKind(NamedTuple):
    """Compile-time constants of the kernels that pack a side's rows or store their gradients.

    Attributes:
        QUERIES: a side of queries, else of contexts.
        PACKED, MASKED: layout of the features.
        LISTED, NORMALIZE: options of the call.
        UNIT: elements that strides are counted in.
        DIM, D: columns of features, and of packed rows.
        WIDTH, ROWS: columns (a power of two, at least D) and rows of a program.
    """

    QUERIES: bool
    PACKED: bool
    MASKED: bool
    LISTED: bool
    NORMALIZE: bool
    UNIT: int
    DIM: int
    D: int
    WIDTH: int
    ROWS: int


class RowKinds(NamedTuple):
    """`RowKind` of either side."""

    CONTEXTS: RowKind
    QUERIES: RowKind


class Source(NamedTuple):
    """Layout of a side's features, and the items of a part: successive ones from `first` on, or a column of the listed
    pairs.

    Attributes:
        item_stride, row_stride: in UNIT elements; 0 between packed items.
        most: maximal rows of an item.
        has_lengths: 1 where lengths of padded items are given.
        slots: rows of an item's slot; 0 where rows follow one another.
        column: of the side's items in pairs.
        n_items: items of the part.
        surplus: rows of zeros behind the last item, stored by one more program.
    """

    item_stride: int
    row_stride: int
    first: int
    most: int
    has_lengths: int
    slots: int
    column: int
    n_items: int
    surplus: int


class Target(NamedTuple):
    """Features of a side and the memory of their packed rows; `starts` has the items' first rows where there are no
    slots.
    """

    features: Tensor
    places: Tensor
    packed: Packed
    starts: Tensor
    source: Source


def rounded(count: Any, unit: int) -> Any:
    """The least multiple of `unit` from `count` on."""
    return -(-count // unit) * unit


@triton.jit(
    do_not_specialize=["contexts", "queries"],
    do_not_specialize_on_alignment=["context_extents", "query_extents", "pairs"],
)
def pack_rows(context_extents, query_extents, pairs, contexts, queries, KIND: tl.constexpr):
    """Copies rows of items into a part of either side, contexts first."""
    number = tl.program_id(0)
    n = decoded(contexts.source.n_items) + tl.minimum(decoded(contexts.source.surplus), 1)
    CONTEXTS: tl.constexpr = KIND.CONTEXTS  # named first: Triton 3.6 passes no tuple field to a function
    QUERIES: tl.constexpr = KIND.QUERIES
    if number < n:
        pack_item(context_extents, pairs, contexts, number, CONTEXTS)
    else:
        pack_item(query_extents, pairs, queries, number - n, QUERIES)


@triton.jit
def pack_item(extents, pairs, target, number, KIND: tl.constexpr):
    """Copies ROWS rows of an item, with their norms; a row that is not finite becomes zeros with the norm NaN.

    A row that is to be normalised is scaled to a length in [1, 2) by a power of two, which rounds nothing. Zeros follow
    the last item.
    """
    ROWS: tl.constexpr = KIND.ROWS
    D: tl.constexpr = KIND.D
    packed = target.packed
    source = target.source
    slots = decoded(source.slots)
    is_item = number < decoded(source.n_items)
    if KIND.LISTED:
        item = tl.load(pairs + 2 * (decoded(source.first) + number.to(tl.int64)) + decoded(source.column))
    else:
        item = (decoded(source.first) + tl.minimum(number, decoded(source.n_items) - 1)).to(tl.int64)
    first = number * slots
    if slots == 0:
        starts = target.starts + decoded(source.first)
        first = tl.load(starts + number) - tl.load(starts)
    begin = tl.full((), 0, tl.int64)
    count = begin + decoded(source.most)
    if KIND.PACKED:
        begin = tl.load(extents + item)
        count = tl.minimum(tl.load(extents + item + 1) - begin, count)
    elif decoded(source.has_lengths) > 0:
        count = tl.minimum(tl.load(extents + item), count)
    count = tl.where(is_item, tl.maximum(count, 0), 0).to(tl.int32)
    slots = tl.where(is_item, slots, decoded(source.surplus))
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = r < count

    # Entry of the item: first packed row, number of rows, first row of packed features.
    if is_item & (tl.program_id(1) == 0):
        tl.store(packed.items + 4 * number, first)
        tl.store(packed.items + 4 * number + 1, count)
        tl.store(packed.items + 4 * number + 3, begin.to(tl.int32))
    # Rows and their lengths; squares of rows divided by their largest number neither overflow nor vanish.
    place = r.to(tl.int64)
    if KIND.MASKED:
        place = tl.load(target.places + item * decoded(source.most) + r, mask=there, other=0)
    offsets = ((begin + place) * decoded(source.row_stride) + item * decoded(source.item_stride)) * KIND.UNIT
    d = tl.arange(0, KIND.WIDTH)
    x = tl.load(
        target.features + offsets[:, None] + d[None, :], mask=there[:, None] & (d < KIND.DIM)[None, :], other=0.0
    )
    x = x.to(tl.float32)
    largest = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 1)  # versions of Triton differ on maxima with NaN
    fine = largest < float("inf")
    x = tl.where(fine[:, None], x, 0.0)
    scale = tl.where(fine & (largest > 0), largest, 1.0)
    norms = scale * tl.sqrt(tl.sum((x / scale[:, None]) * (x / scale[:, None]), 1))
    if KIND.NORMALIZE:
        fine = fine & (norms < float("inf"))
        norms = tl.where(norms >= 2.0**-126, norms, 0.0)
        exponent = norms.to(tl.int32, bitcast=True) & 0x7F800000
        power = tl.where(norms > 0, (0x7F000000 - exponent).to(tl.float32, bitcast=True), 0.0)
        norms, x = norms * power, x * power[:, None]
        tl.store(packed.powers + first + r, power, mask=there)
    else:
        fine = fine & (norms < MOST_LENGTH)
        norms = tl.where(norms >= 2.0**-126, norms, 0.0)
    # Packed rows, and zeros in empty slots.
    x = tl.where(fine[:, None], x, 0.0)
    n_rows = count if KIND.QUERIES else (count + TOGETHER - 1) // TOGETHER * TOGETHER
    in_part = r < tl.maximum(slots, n_rows)
    cells = packed.rows + (first + r).to(tl.int64)[:, None] * D + d[None, :]
    tl.store(cells, x.to(packed.rows.dtype.element_ty), mask=in_part[:, None] & (d < D)[None, :])
    tl.store(packed.norms + first + r, tl.where(fine, norms, float("nan")), mask=in_part)
