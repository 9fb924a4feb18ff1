"""Attention pooling in Triton: the values' gradient, which needs no values, and the logits', one pass over them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.attention_pool.triton.call import (
    COLUMNS,
    ROWS,
    Call,
    first_value,
    item_rows,
    tile_weights,
    valid_rows,
)
from crossret_kernels.gpu.triton_launch import launch


@triton.jit(
    do_not_specialize=["n", "slots", "heads", "D", "parts"],
    do_not_specialize_on_alignment=["grad_pooled", "logits", "extents"],
)
def pooled_value_gradients(
    grad_pooled, logits, extents, statistics, out, n, slots, heads, D, parts, KIND: tl.constexpr
):  # fmt: skip
    """Σ weight · ∂L/∂pooled over heads: some columns of a part of an item's rows, 0 where there is none."""
    HEADS: tl.constexpr = KIND.HEADS
    across = tl.cdiv(D, COLUMNS)
    item = tl.program_id(0) // (across * parts)
    part = tl.program_id(0) // across % parts
    d = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    begin, count = item_rows(extents, item, slots, KIND)
    places = count if KIND.EXTENTS == 2 else slots.to(tl.int64)
    for first in range(part * ROWS, places, parts * ROWS):
        r = first + tl.arange(0, ROWS)
        valid = valid_rows(extents, begin, r, count, KIND)
        sums = tl.full((ROWS, COLUMNS), 0, tl.float32)
        for head in tl.range(0, heads, HEADS, num_stages=1):
            h = head + tl.arange(0, HEADS)
            weights = tile_weights(logits, statistics, begin, item, r, valid, h, n, heads)
            cells = grad_pooled + (item.to(tl.int64) * heads + h)[:, None] * D + d[None, :]
            grads = tl.load(cells, mask=(h < heads)[:, None] & (d < D)[None, :], other=0.0)
            sums = tl.dot(weights, grads, sums, input_precision="ieee")
        made = tl.where(valid[:, None], sums, 0.0)
        to = out + (begin + r)[:, None] * D + d[None, :]
        tl.store(to, made.to(out.dtype.element_ty), mask=(r < places)[:, None] & (d < D)[None, :])


@triton.jit(
    do_not_specialize=["slots", "heads", "D", "item_stride", "row_stride", "width", "parts"],
    do_not_specialize_on_alignment=["grad_pooled", "grad_weights", "extents"],
)
def pooled_dots(
    values, grad_pooled, grad_weights, extents, dots, slots, heads, D, item_stride, row_stride, width, parts,
    KIND: tl.constexpr,
):  # fmt: skip
    """⟨∂L/∂pooled, value⟩ + ∂L/∂weight of some heads and a part of an item's rows."""
    HEADS: tl.constexpr = KIND.HEADS
    tiles = tl.cdiv(heads, HEADS)
    item = tl.program_id(0) // (tiles * parts)
    part = tl.program_id(0) // tiles % parts
    h = tl.program_id(0) % tiles * HEADS + tl.arange(0, HEADS)
    begin, count = item_rows(extents, item, slots, KIND)
    at = values + first_value(item, begin, item_stride, row_stride, KIND)
    own = item.to(tl.int64) * heads + h
    for first in range(part * ROWS, count, parts * ROWS):
        r = first + tl.arange(0, ROWS)
        valid = valid_rows(extents, begin, r, count, KIND)
        sums = tl.full((ROWS, HEADS), 0, tl.float32)
        for column in tl.range(0, D, COLUMNS, num_stages=1):
            d = column + tl.arange(0, COLUMNS)
            cells = at + r.to(tl.int64)[:, None] * row_stride * KIND.UNIT + d[None, :]
            inside = valid[:, None] if KIND.EVEN else valid[:, None] & (d < D)[None, :]
            x = tl.load(cells, mask=inside, other=0.0).to(tl.float32)
            cells = grad_pooled + own[:, None] * D + d[None, :]
            grads = tl.load(cells, mask=(h < heads)[:, None] & (d < D)[None, :], other=0.0)
            sums = tl.dot(x, tl.trans(grads), sums, input_precision="ieee")
        inside = valid[:, None] & (h < heads)[None, :]
        if KIND.WEIGHTS:
            sums += tl.load(grad_weights + own[None, :] * width + r[:, None], mask=inside, other=0.0)
        tl.store(dots + (begin + r)[:, None] * heads + h[None, :], sums, mask=inside)


@triton.jit(do_not_specialize=["n", "slots", "heads"], do_not_specialize_on_alignment=["logits", "extents"])
def pooled_logit_gradients(logits, extents, statistics, dots, out, n, slots, heads, KIND: tl.constexpr):
    """weight · (dot − Σ weight · dot) of an item and some heads, 0 where there is no row."""
    HEADS: tl.constexpr = KIND.HEADS
    tiles = tl.cdiv(heads, HEADS)
    item = tl.program_id(0) // tiles
    h = tl.program_id(0) % tiles * HEADS + tl.arange(0, HEADS)
    begin, count = item_rows(extents, item, slots, KIND)
    along = tl.full((HEADS,), 0, tl.float32)
    for first in range(0, count, ROWS):
        r = first + tl.arange(0, ROWS)
        valid = valid_rows(extents, begin, r, count, KIND)
        weights = tile_weights(logits, statistics, begin, item, r, valid, h, n, heads)
        cells = dots + (begin + r)[:, None] * heads + h[None, :]
        along += tl.sum(weights * tl.load(cells, mask=valid[:, None] & (h < heads)[None, :], other=0.0), 0)
    places = count if KIND.EXTENTS == 2 else slots.to(tl.int64)
    for first in range(0, places, ROWS):
        r = first + tl.arange(0, ROWS)
        valid = valid_rows(extents, begin, r, count, KIND)
        weights = tile_weights(logits, statistics, begin, item, r, valid, h, n, heads)
        cells = (begin + r)[:, None] * heads + h[None, :]
        dot = tl.load(dots + cells, mask=valid[:, None] & (h < heads)[None, :], other=0.0)
        made = tl.where(valid[:, None], weights * (dot - along[None, :]), 0.0)
        tl.store(out + cells, made, mask=(r < places)[:, None] & (h < heads)[None, :])


def gradients(
    grad_pooled: Tensor, grad_weights: Tensor, values: Tensor, offsets: Tensor | None, lengths: Tensor | None,
    mask: Tensor | None, logits: Tensor, width: int, of_values: bool, of_logits: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::attention_pool_triton_backward`: those of values and logits, in their dtypes; empty if not wanted."""
    call = Call(values, offsets, lengths, mask, logits, width > 0)
    grad_values = values.new_empty(values.shape if of_values else (0,))
    grad_logits = logits.new_empty(logits.shape if of_logits else (0,))
    if not call.n:
        return grad_values, grad_logits
    grad_pooled, grad_weights = grad_pooled.contiguous(), grad_weights.contiguous()
    # Weights are no result here.
    kind, call.kind = call.kind, call.kind._replace(WEIGHTS=False)
    statistics = call.statistics(call.logits, 0)
    if of_values:
        parts = call.parts(call.column_tiles)
        launch(
            pooled_value_gradients, (call.n * parts * call.column_tiles, 1, 1),
            (grad_pooled, call.logits, call.extents, statistics, grad_values, call.n, call.slots, call.heads, call.dim,
             parts), kind, call.key,
        )  # fmt: skip
    if of_logits:
        dots, parts = call.logits.new_empty(call.logits.shape), call.parts(call.head_tiles)
        launch(
            pooled_dots, (call.n * parts * call.head_tiles, 1, 1),
            (call.values, grad_pooled, grad_weights if width else grad_pooled, call.extents, dots, call.slots,
             call.heads, call.dim, *call.strides, width, parts), kind, call.key,
        )  # fmt: skip
        launch(
            pooled_logit_gradients, (call.n * call.head_tiles, 1, 1),
            (call.logits, call.extents, statistics, dots, grad_logits, call.n, call.slots, call.heads), kind, call.key,
        )  # fmt: skip
    return grad_values, grad_logits
