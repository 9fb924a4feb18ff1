"""Attention pooling in Triton: an item's rows are read once for all heads, a tile of columns a program."""

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
    do_not_specialize=["n", "slots", "heads", "D", "item_stride", "row_stride"],
    do_not_specialize_on_alignment=["logits", "extents"],
)
def pool_rows(
    values, logits, extents, statistics, pooled, n, slots, heads, D, item_stride, row_stride, KIND: tl.constexpr
):  # fmt: skip
    """Some columns of an item's heads."""
    HEADS: tl.constexpr = KIND.HEADS
    across = tl.cdiv(D, COLUMNS)
    tiles = tl.cdiv(heads, HEADS)
    item = tl.program_id(0) // (across * tiles)
    h = tl.program_id(0) // across % tiles * HEADS + tl.arange(0, HEADS)
    d = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    begin, count = item_rows(extents, item, slots, KIND)
    at = values + first_value(item, begin, item_stride, row_stride, KIND)
    sums = tl.full((HEADS, COLUMNS), 0, tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=1):
        r = first + tl.arange(0, ROWS)
        valid = valid_rows(extents, begin, r, count, KIND)
        weights = tile_weights(logits, statistics, begin, item, r, valid, h, n, heads)
        cells = at + r.to(tl.int64)[:, None] * row_stride * KIND.UNIT + d[None, :]
        inside = valid[:, None] if KIND.EVEN else valid[:, None] & (d < D)[None, :]
        x = tl.load(cells, mask=inside, other=0.0).to(tl.float32)
        sums = tl.dot(tl.trans(weights), x, sums, input_precision="ieee")
    to = pooled + (item.to(tl.int64) * heads + h)[:, None] * D + d[None, :]
    tl.store(to, sums, mask=(h < heads)[:, None] & (d < D)[None, :])


def pool(
    values: Tensor, offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None, logits: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """`crossret::attention_pool_triton`: pooled (n, heads, D) and weights (n, heads, width), float32."""
    call = Call(values, offsets, lengths, mask, logits, width > 0)
    pooled = call.logits.new_empty((call.n, call.heads, call.dim))
    weights = pooled.new_empty((call.n, call.heads, width))
    if call.n:
        statistics = call.statistics(weights if width else pooled, width)
        launch(
            pool_rows, (call.n * call.head_tiles * call.column_tiles, 1, 1),
            (call.values, call.logits, call.extents, statistics, pooled, call.n, call.slots, call.heads, call.dim,
             *call.strides), call.kind, call.key,
        )  # fmt: skip
    return pooled, weights
