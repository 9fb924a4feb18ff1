"""Gradients of features in Triton: what their packed rows have summed up, stored where the rows lie."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import clean, gram_cells, item_of, wide
from crossret_kernels.cross_attention.triton.call import Call, Packed, Part, Source, replaced, row_offsets
from crossret_kernels.cross_attention.triton.chunks import FEATURES, multiply
from crossret_kernels.cross_attention.triton.forward import TINY
from crossret_kernels.gpu.triton_launch import hidden, launch
from crossret_kernels.gpu.triton_tiles import inverse, shown


class Sums:
    """Gradients of a packed part of one side, summed up in float32.

    Attributes:
        part, packed: its rows.
        own: what each row of queries gets of itself, negative; unused zeros of contexts.
        total: the sums (rows, D), of listed pairs (pairs, slots, D); None while there are none.
    """

    def __init__(self, part: Part, packed: Packed) -> None:
        self.part, self.packed = part, packed
        self.own = torch.zeros(part.n_rows, device=packed.norms.device)
        self.total: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Adds a product."""
        product = torch.empty(*left.shape[:-1], right.size(-1), device=left.device)
        multiply(left, right, product)
        self.total = product if self.total is None else self.total.add_(product)
        return self.total


def store(call: Call, kernel: Any, order: tuple[Tensor, ...], sums: Sums, out: Tensor | None) -> None:
    """A part's sums as gradients, where its rows lie."""
    if out is None:
        return
    own, plan, strides = sums.part.own, call.plan, out.stride()
    longest, kind = (plan.contexts, plan.queries)[own].longest, replaced(call.form.kinds[own], UNIT=1)
    first = 0 if order else sums.part.first
    source = Source(*map(hidden, (0 if kind.PACKED else strides[0], strides[-2], first, longest, 0)))
    launch(
        kernel, sums.part.grid,
        (plan.starts[own], plan.places[own], *order, sums.packed, sums.total, sums.own, out, source), kind,
        (call.form.key, sums.part.dtype, out.dtype, strides[0] >= 2**30 - 2),
    )  # fmt: skip


def store_listed(call: Call, sums: Sums, out: Tensor) -> None:
    """Adds a run's sums to the gradients, all pairs of an item at once, in the order of the list."""
    assert call.pairs is not None
    part = sums.part
    pairs = call.pairs[part.first : part.first + part.count, call.form.columns[part.own]]
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
def add_rows(total, own, packed, rows, place, item, start, there, out, source, KIND: tl.constexpr):
    """Adds to rows' gradients, where the rows lie, what their packed ones have summed up: of themselves too."""
    d = tl.arange(0, KIND.WIDTH)
    cells = packed.rows + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    x = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0).to(tl.float32)
    norms = clean(tl.load(packed.norms + rows, mask=there, other=0.0))
    if KIND.NORMALIZE:
        x = x * inverse(norms)[:, None]
        total = total - tl.sum(total * x, 1)[:, None] * x
        total = total * tl.load(packed.powers + rows, mask=there, other=0.0)[:, None]
    else:
        shares = 1.0 / tl.maximum(norms, TINY)  # twice: the square itself may be out of range
        total += (own * shares)[:, None] * (x * shares[:, None])
    found = out + row_offsets(place, item, start, source, KIND)[:, None] + d[None, :]
    inside = there[:, None] & (d < KIND.DIM)[None, :]
    total += tl.load(found, mask=inside, other=0.0).to(tl.float32)
    tl.store(found, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["source"])
def store_gradients(starts, places, packed, sums, own, out, source, KIND: tl.constexpr):
    """A part's sums as the gradients of ROWS rows of an item, where they lie."""
    number = tl.program_id(0)
    item = wide(shown(source.first) + number)
    start = tl.load(starts + item)
    place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)
    there = place < tl.load(starts + item + 1) - start
    d = tl.arange(0, KIND.WIDTH)
    rows = tl.load(packed.items + 3 * number) + place
    cells = sums + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    total = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
    along = tl.load(own + rows, mask=there, other=0.0)
    if KIND.MASKED:
        place = tl.load(places + start + place, mask=there, other=0)
    add_rows(total, along, packed, rows, place, item, start, there, out, source, KIND)


@triton.jit(do_not_specialize=["source"])
def add_listed_gradients(starts, places, items, order, ends, packed, sums, own, out, source, KIND: tl.constexpr):
    """Adds the sums of all pairs of an item to ROWS rows' gradients; `order` has the pairs by item, up to its end."""
    ROWS: tl.constexpr = KIND.ROWS
    WIDTH: tl.constexpr = KIND.WIDTH
    number = tl.program_id(0)
    item = tl.load(items + number)
    if (number == 0) | (tl.load(items + tl.maximum(number - 1, 0)) != item):
        start = tl.load(starts + item)
        place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there = place < tl.load(starts + item + 1) - start
        d = tl.arange(0, WIDTH)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        along = tl.zeros((ROWS,), tl.float32)
        for other in range(number, tl.load(ends + number).to(tl.int32)):
            rows = tl.load(order + other).to(tl.int32) * shown(source.slots) + place
            cells = sums + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
            total += tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
            along += tl.load(own + rows, mask=there, other=0.0)
        rows = tl.load(order + number).to(tl.int32) * shown(source.slots) + place
        if KIND.MASKED:
            place = tl.load(places + start + place, mask=there, other=0)
        add_rows(total, along, packed, rows, place, item, start, there, out, source, KIND)
