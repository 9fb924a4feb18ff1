"""Gradients of features in Triton: what their packed rows have summed up, stored where the rows lie."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import clean, gram_cells, item_of, wide
from crossret_kernels.cross_attention.triton.call import Call, Packed, Part, Source, begin_of, replaced, row_offsets
from crossret_kernels.cross_attention.triton.chunks import FEATURES, multiply
from crossret_kernels.cross_attention.triton.forward import TINY
from crossret_kernels.gpu.triton_launch import hidden, launch
from crossret_kernels.gpu.triton_tiles import inverse, shown


class Sums:
    """Gradients of a packed part of one side, summed up in float32.

    Attributes:
        part, packed: its rows.
        own: what each row of queries gets of itself, negative; None of contexts.
        total: the sums (rows, D), of listed pairs (pairs, slots, D); None while there are none.
    """

    def __init__(self, part: Part, packed: Packed) -> None:
        self.part, self.packed = part, packed
        self.own: Tensor | None = None
        self.total: Tensor | None = None

    def own_rows(self) -> tuple[Tensor, bool]:
        """`own`, and whether an earlier run has left something there."""
        later = self.own is not None
        if self.own is None:
            self.own = torch.empty_like(self.packed.norms)
        return self.own, later

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Adds a product."""
        product = torch.empty(*left.shape[:-1], right.size(-1), device=left.device)
        multiply(left, right.to(left.dtype), product)
        self.total = product if self.total is None else self.total.add_(product)
        return self.total


def store(call: Call, kernel: Any, order: tuple[Tensor, ...], sums: Sums, out: Tensor | None) -> None:
    """A part's sums as gradients, where its rows lie."""
    if out is None:
        return
    part, packed, strides = sums.part, sums.packed, out.stride()
    kind, first = replaced(part.kind, UNIT=1), 0 if order else part.first
    source = Source(*map(hidden, (0 if kind.PACKED else strides[0], strides[-2], first, part.most, 0, part.slots, 0)))
    extents, places, _starts, _pairs = call.tables(part, packed, None)
    own = packed.norms if sums.own is None else sums.own
    launch(
        kernel, part.grid,
        (extents, places, *order, packed, sums.total, own, out, source), kind,
        (call.form.key, out.dtype, strides[0] >= 2**30 - 2),
    )  # fmt: skip


def store_listed(call: Call, sums: Sums, out: Tensor) -> None:
    """Adds a run's sums to the gradients, all pairs of an item at once, in the order of the list."""
    assert call.pairs is not None
    part = sums.part
    pairs = call.pairs[part.first : part.first + part.n_items, call.form.columns[part.own]]
    items, order = pairs.sort(stable=True)
    ends = torch.searchsorted(items, items, right=True)
    store(call, add_listed_gradients, (items, order, ends), sums, out)


@triton.jit(do_not_specialize=["run"])
def add_gram_products(run, of_grams, sums, KIND: tl.constexpr):
    """Adds (∂L/∂G + its transpose) C to a block of an item's rows, in FEATURES of their columns."""
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    first, count = item_of(run.contexts, item)
    r = tl.program_id(1) * C + tl.arange(0, C)
    d = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    cells = sums + (first + r).to(tl.int64)[:, None] * KIND.D + d[None, :]
    there = (r < count)[:, None]
    total = tl.load(cells, mask=there, other=0.0)
    for start in range(0, count, C):
        c = start + tl.arange(0, C)
        block = tl.load(gram_cells(of_grams, item, run, tl.program_id(1) * C, start, KIND))
        rows = run.contexts.rows + (first + c).to(tl.int64)[:, None] * KIND.D + d[None, :]
        x = tl.load(rows, mask=(c < count)[:, None], other=0.0).to(tl.float32)
        total = tl.dot(block, x, total, input_precision=KIND.FINE)
    tl.store(cells, total, mask=there)


@triton.jit
def of_features(total, own, packed, rows, there, KIND: tl.constexpr):
    """(ROWS, WIDTH) gradients of rows from what their packed ones have summed up, of themselves too."""
    d = tl.arange(0, KIND.WIDTH)
    cells = packed.rows + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    x = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0).to(tl.float32)
    norms = clean(tl.load(packed.norms + rows, mask=there, other=0.0))
    if KIND.NORMALIZE:
        x = x * inverse(norms)[:, None]
        total = total - tl.sum(total * x, 1)[:, None] * x
        return total * tl.load(packed.powers + rows, mask=there, other=0.0)[:, None]
    if KIND.QUERIES:
        shares = 1.0 / tl.maximum(norms, TINY)  # twice: the square itself may be out of range
        total += (own * shares)[:, None] * (x * shares[:, None])
    return total


@triton.jit
def own_of(own, rows, there, KIND: tl.constexpr):
    """What rows of queries get of themselves; 0 of contexts."""
    if KIND.QUERIES:
        return tl.load(own + rows, mask=there, other=0.0)
    return tl.full((KIND.ROWS,), 0, tl.float32)


@triton.jit(do_not_specialize=["source"], do_not_specialize_on_alignment=["extents"])
def store_gradients(extents, places, packed, sums, own, out, source, KIND: tl.constexpr):
    """A part's sums as the gradients of ROWS rows of an item, where they lie; zeros in what other slots it has."""
    number = tl.program_id(0)
    item = wide(shown(source.first) + number)
    first, count = item_of(packed, number)
    place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)
    there = place < count
    d = tl.arange(0, KIND.WIDTH)
    rows = first + place
    cells = sums + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    total = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
    total = of_features(total, own_of(own, rows, there, KIND), packed, rows, there, KIND)
    start = begin_of(extents, item, KIND)
    given = tl.minimum(shown(source.slots), shown(source.most))
    stored = place < (count if KIND.PACKED else tl.maximum(count, given))
    if KIND.MASKED:
        place = tl.load(places + item * shown(source.most) + place, mask=stored, other=0)
    found = out + row_offsets(place, item, start, source, KIND)[:, None] + d[None, :]
    tl.store(found, total.to(out.dtype.element_ty), mask=stored[:, None] & (d < KIND.DIM)[None, :])


@triton.jit(do_not_specialize=["source"], do_not_specialize_on_alignment=["extents"])
def add_listed_gradients(extents, places, items, order, ends, packed, sums, own, out, source, KIND: tl.constexpr):
    """Adds the sums of all pairs of an item to ROWS rows' gradients; `order` has the pairs by item, up to its end."""
    ROWS: tl.constexpr = KIND.ROWS
    WIDTH: tl.constexpr = KIND.WIDTH
    number = tl.program_id(0)
    item = tl.load(items + number)
    if (number == 0) | (tl.load(items + tl.maximum(number - 1, 0)) != item):
        pair = tl.load(order + number).to(tl.int32)
        _first, count = item_of(packed, pair)
        place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there = place < count
        d = tl.arange(0, WIDTH)
        total = tl.full((ROWS, WIDTH), 0, tl.float32)
        along = tl.full((ROWS,), 0, tl.float32)
        for other in range(number, tl.load(ends + number).to(tl.int32)):
            rows = tl.load(order + other).to(tl.int32) * shown(source.slots) + place
            cells = sums + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
            total += tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
            along += own_of(own, rows, there, KIND)
        total = of_features(total, along, packed, pair * shown(source.slots) + place, there, KIND)
        start = begin_of(extents, item, KIND)
        if KIND.MASKED:
            place = tl.load(places + item * shown(source.most) + place, mask=there, other=0)
        found = out + row_offsets(place, item, start, source, KIND)[:, None] + d[None, :]
        inside = there[:, None] & (d < KIND.DIM)[None, :]
        total += tl.load(found, mask=inside, other=0.0).to(tl.float32)
        tl.store(found, total.to(out.dtype.element_ty), mask=inside)
