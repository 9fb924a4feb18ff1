"""Gradients of features in Triton: what their packed rows have summed up, stored where the rows lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import clean, item_of, wide
from crossret_kernels.cross_attention.triton.call import Call, Packed, Part, Source, begin_of, row_offsets
from crossret_kernels.cross_attention.triton.chunks import gram_pitch_of, memory, multiply
from crossret_kernels.cross_attention.triton.relevances import TINY
from crossret_kernels.gpu.triton_launch import hidden, launch
from crossret_kernels.gpu.triton_tiles import inverse, shown

NOWHERE = Source(*map(hidden, (0,) * len(Source._fields)))


class Summed(NamedTuple):
    """`Sums` as kernels read them, and where gradients of their rows lie."""

    packed: Packed
    total: Tensor
    grams: Tensor
    gram_pitch: int
    source: Source


class Sums:
    """Gradients of a packed part of one side, summed up in float32.

    Attributes:
        part, packed: its rows.
        out: where their gradients are to lie; None where they are not wanted.
        grams: of contexts ∂L/∂G + its transpose of every item, (items, pitch, pitch).
        total: of rows but for what grams and `packed.own` bring, (rows, D).
        later: whether a run has left something there.
    """

    def __init__(self, part: Part, packed: Packed, out: Tensor | None, room: Sequence[Tensor] = ()) -> None:
        """`room` is memory as `room_of` says, where there is some already."""
        self.part, self.packed, self.out, self.later = part, packed, out, False
        self.grams, self.total = room or memory(part.form.device, self.room_of(part, out))

    @staticmethod
    def room_of(part: Part, out: Tensor | None) -> list[int]:
        """Numbers of grams and total."""
        wanted = out is not None
        grams = wanted * (1 - part.own) * part.n_items * gram_pitch_of(part.longest, part.form) ** 2
        return [grams, wanted * part.n_rows * part.form.dim]

    def add(self, left: Tensor, right: Tensor) -> None:
        """Adds a product of a run to the total."""
        total = self.total.view(*left.shape[:-1], right.size(-1))
        product = torch.empty_like(total) if self.later else total
        multiply(left, right.to(left.dtype), product)
        if self.later:
            total.add_(product)
        self.later = True

    def stored(self, first: int) -> Summed:
        """As kernels have it that store gradients of items from `first` on."""
        assert self.out is not None
        part, strides = self.part, self.out.stride()
        item_stride = 0 if part.kind.PACKED else strides[0]
        own = item_stride, strides[-2], first, part.most, 0, part.slots, 0, part.n_items, 0
        grams = self.total if part.own else self.grams
        pitch = hidden(gram_pitch_of(part.longest, part.form))
        return Summed(self.packed, self.total, grams, pitch, Source(*map(hidden, own)))


def far(out: Tensor) -> bool:
    """Whether hidden strides take more than 32 bits."""
    return out.stride(0) >= 2**30 - 2


def store(call: Call, *sums: Sums) -> None:
    """Sums of parts as gradients where their rows lie, at most one of either side; of those that runs have left."""
    given = [(own, own.out) for own in sums if own.out is not None and own.later]
    if not given:
        return
    outs, summed = [given[0][1]] * 2, [given[0][0].stored(0)._replace(source=NOWHERE)] * 2
    for own, out in given:
        outs[own.part.own], summed[own.part.own] = out, own.stored(own.part.first)
    grid = sum(own.part.n_items for own, _ in given), max(own.part.blocks for own, _ in given), 1
    arguments = *outs, *call.tables(0), *call.tables(1), *summed
    launch(store_gradients, grid, arguments, call.form.kinds, (call.form.key, outs[0].dtype, *map(far, outs)))


def store_listed(call: Call, sums: Sums) -> None:
    """Adds a run's sums to the gradients, all pairs of an item at once, in the order of the list."""
    part, out = sums.part, sums.out
    if out is None:
        return
    assert call.pairs is not None
    pairs = call.pairs[part.first : part.first + part.n_items, call.form.columns[part.own]]
    items, order = pairs.sort(stable=True)
    ends = torch.searchsorted(items, items, right=True)
    arguments = out, *call.tables(part.own), items, order, ends, sums.stored(0)
    grid, key = (part.n_items, part.blocks, 1), (call.form.key, out.dtype, far(out))
    launch(add_listed_gradients, grid, arguments, part.kind, key)


@triton.jit
def add_gram_products(total, summed, item, first, count, place, KIND: tl.constexpr):
    """Adds (∂L/∂G + its transpose) C to these rows of an item of contexts."""
    d = tl.arange(0, KIND.WIDTH)
    pitch = shown(summed.gram_pitch)
    for c in range(0, count):
        of_grams = tl.load(summed.grams + (wide(item) * pitch + c) * pitch + place, mask=place < count, other=0.0)
        rows = summed.packed.rows + wide(first + c) * KIND.D + d
        total += of_grams[:, None] * tl.load(rows, mask=d < KIND.D, other=0.0).to(tl.float32)[None, :]
    return total


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
def own_of(packed, rows, there, KIND: tl.constexpr):
    """What rows of queries get of themselves; 0 of contexts."""
    if KIND.QUERIES:
        return tl.load(packed.own + rows, mask=there, other=0.0)
    return tl.full((KIND.ROWS,), 0, tl.float32)


@triton.jit(
    do_not_specialize=["contexts", "queries"],
    do_not_specialize_on_alignment=["context_extents", "query_extents"],
)
def store_gradients(
    context_out, query_out, context_extents, context_places, query_extents, query_places, contexts, queries,
    KIND: tl.constexpr,
):  # fmt: skip
    """Sums of a part of either side, contexts' first, as the gradients of their items."""
    number = tl.program_id(0)
    n = shown(contexts.source.n_items)
    if number < n:
        store_item(context_out, context_extents, context_places, contexts, number, KIND.CONTEXTS)
    else:
        store_item(query_out, query_extents, query_places, queries, number - n, KIND.QUERIES)


@triton.jit
def store_item(out, extents, places, summed, number, KIND: tl.constexpr):
    """Gradients of ROWS rows of an item, where they lie; zeros in what other slots it has."""
    packed = summed.packed
    source = summed.source
    item = wide(shown(source.first) + number)
    first, count = item_of(packed, number)
    place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)
    there = place < count
    d = tl.arange(0, KIND.WIDTH)
    rows = first + place
    cells = summed.total + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    total = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
    if not KIND.QUERIES:
        total = add_gram_products(total, summed, number, first, count, place, KIND)
    total = of_features(total, own_of(packed, rows, there, KIND), packed, rows, there, KIND)
    start = begin_of(extents, item, KIND)
    given = tl.minimum(shown(source.slots), shown(source.most))
    stored = place < (count if KIND.PACKED else tl.maximum(count, given))
    if KIND.MASKED:
        place = tl.load(places + item * shown(source.most) + place, mask=stored, other=0)
    found = out + row_offsets(place, item, start, source, KIND)[:, None] + d[None, :]
    tl.store(found, total.to(out.dtype.element_ty), mask=stored[:, None] & (d < KIND.DIM)[None, :])


@triton.jit(do_not_specialize=["summed"], do_not_specialize_on_alignment=["extents"])
def add_listed_gradients(out, extents, places, items, order, ends, summed, KIND: tl.constexpr):
    """Adds the sums of all pairs of an item to ROWS rows' gradients; `order` has the pairs by item, up to its end."""
    ROWS: tl.constexpr = KIND.ROWS
    WIDTH: tl.constexpr = KIND.WIDTH
    packed = summed.packed
    source = summed.source
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
            first = tl.load(order + other).to(tl.int32) * shown(source.slots)
            rows = first + place
            cells = summed.total + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
            total += tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
            if KIND.QUERIES:
                along += own_of(packed, rows, there, KIND)
            else:
                total = add_gram_products(total, summed, tl.load(order + other), first, count, place, KIND)
        total = of_features(total, along, packed, pair * shown(source.slots) + place, there, KIND)
        start = begin_of(extents, item, KIND)
        if KIND.MASKED:
            place = tl.load(places + item * shown(source.most) + place, mask=there, other=0)
        found = out + row_offsets(place, item, start, source, KIND)[:, None] + d[None, :]
        inside = there[:, None] & (d < KIND.DIM)[None, :]
        total += tl.load(found, mask=inside, other=0.0).to(tl.float32)
        tl.store(found, total.to(out.dtype.element_ty), mask=inside)
