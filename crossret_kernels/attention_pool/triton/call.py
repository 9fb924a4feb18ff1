"""A call of attention pooling as its Triton kernels take it: where an item's rows lie, and their softmax weights."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.planning import capturing
from crossret_kernels.gpu.sides import Rows, beside
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.tuning import AttentionPool, slots_for

ROWS, COLUMNS = tl.constexpr(AttentionPool.ROWS), tl.constexpr(AttentionPool.COLUMNS)
ALL, LENGTHS, OFFSETS, MASK = range(4)  # what tells how many rows an item has


class Kind(NamedTuple):
    """What kernels are compiled for.

    Attributes:
        EXTENTS: one of `ALL`, `LENGTHS`, `OFFSETS` and `MASK`.
        HEADS: of a tile.
        UNIT: elements that the values' strides are counted in.
        EVEN: whether `COLUMNS` divides D.
        WEIGHTS: whether there are weights, or a gradient of them.
    """

    EXTENTS: int
    HEADS: int
    UNIT: int
    EVEN: bool
    WEIGHTS: bool


class Call:
    """Checked tensors of a call, their softmax's statistics (2, n, heads): greatest logits, and 1 / Σ exp."""

    def __init__(
        self, values: Tensor, offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None, logits: Tensor,
        weights: bool,
    ) -> None:  # fmt: skip
        contiguous = values.stride(-1) == 1 or values.size(-1) == 1
        offset = values.data_ptr() % 16
        self.values = values if contiguous and not offset else values.clone(memory_format=torch.contiguous_format)
        self.logits = logits.contiguous()
        self.packed = offsets is not None
        extents = [x for x in (lengths, offsets, mask) if x is not None]
        given = ALL if not extents else LENGTHS if lengths is not None else OFFSETS if self.packed else MASK
        told = extents[0] if extents else None
        if not capturing(values.device):
            (told,) = beside(values.device, told)
        elif told is not None and told.device != values.device:
            raise RuntimeError(
                "no CUDA graph can be captured of rows whose lengths or masks lie on the host: they would be those of "
                "the capture whenever the graph runs"
            )
        self.extents = self.logits if told is None else told.to(values.device).contiguous()
        if given == MASK:
            self.extents = self.extents.view(torch.uint8)
        self.n = values.size(0) if offsets is None else offsets.size(0) - 1
        self.slots = 0 if self.packed else values.size(1)
        self.heads, self.dim = logits.size(-1), values.size(-1)
        rows = Rows.of(self.values.stride(), 0, values.element_size())
        self.strides = rows.item_stride // rows.unit, rows.row_stride // rows.unit
        tile = slots_for(min(self.heads, AttentionPool.HEADS))
        self.kind = Kind(given, tile, rows.unit, self.dim % COLUMNS.value == 0, weights)
        self.key: Hashable = values.device, values.dtype, rows.far
        self.head_tiles = -(-self.heads // tile)
        self.column_tiles = -(-self.dim // COLUMNS.value)

    def parts(self, programs_an_item: int) -> int:
        """Programs that share an item's rows, beside so many that all take them."""
        return max(1, min(AttentionPool.PARTS, AttentionPool.PROGRAMS // max(1, self.n * programs_an_item)))

    def statistics(self, weights: Tensor, width: int) -> Tensor:
        made = self.logits.new_empty((2, self.n, self.heads))
        launch(
            softmax_statistics, (self.n * self.head_tiles, 1, 1),
            (self.logits, self.extents, made, weights, self.n, self.slots, self.heads, width), self.kind, self.key,
        )  # fmt: skip
        return made


@triton.jit
def item_rows(extents, item, slots, KIND: tl.constexpr):
    """(The number of an item's first row, places for its rows), int64."""
    item = item.to(tl.int64)
    begin, count = item * slots, slots.to(tl.int64)
    if KIND.EXTENTS == 1:
        count = tl.minimum(tl.load(extents + item), slots)
    elif KIND.EXTENTS == 2:
        begin = tl.load(extents + item)
        count = tl.load(extents + item + 1) - begin
    return begin, count


@triton.jit
def first_value(item, begin, item_stride, row_stride, KIND: tl.constexpr):
    """Where an item's values begin."""
    at = begin * row_stride if KIND.EXTENTS == 2 else item.to(tl.int64) * item_stride
    return at * KIND.UNIT


@triton.jit
def valid_rows(extents, begin, r, count, KIND: tl.constexpr):
    """Which places r of an item hold a row."""
    valid = r < count
    if KIND.EXTENTS == 3:
        valid = valid & (tl.load(extents + begin + r, mask=valid, other=0) != 0)
    return valid


@triton.jit
def tile_weights(logits, statistics, begin, item, r, valid, h, n, heads):
    """(ROWS, HEADS): softmax weights of some rows; 0 where there is no row or head."""
    inside = valid[:, None] & (h < heads)[None, :]
    x = tl.load(logits + (begin + r)[:, None] * heads + h[None, :], mask=inside, other=0.0)
    own = statistics + item.to(tl.int64) * heads + h
    most = tl.load(own, mask=h < heads, other=0.0)
    inverse = tl.load(own + n.to(tl.int64) * heads, mask=h < heads, other=0.0)
    return tl.where(inside, tl.exp(x - most[None, :]) * inverse[None, :], 0.0)


@triton.jit(
    do_not_specialize=["n", "slots", "heads", "width"], do_not_specialize_on_alignment=["logits", "extents", "weights"]
)
def softmax_statistics(logits, extents, statistics, weights, n, slots, heads, width, KIND: tl.constexpr):
    """Of an item and some heads: their statistics and, where wanted, their weights, zeros where there is no row."""
    HEADS: tl.constexpr = KIND.HEADS
    tiles = tl.cdiv(heads, HEADS)
    item = tl.program_id(0) // tiles
    h = tl.program_id(0) % tiles * HEADS + tl.arange(0, HEADS)
    begin, count = item_rows(extents, item, slots, KIND)
    most = tl.full((HEADS,), -float("inf"), tl.float32)
    for first in range(0, count, ROWS):
        r = first + tl.arange(0, ROWS)
        inside = valid_rows(extents, begin, r, count, KIND)[:, None] & (h < heads)[None, :]
        x = tl.load(logits + (begin + r)[:, None] * heads + h[None, :], mask=inside, other=-float("inf"))
        most = tl.maximum(most, tl.max(tl.where(x == x, x, -float("inf")), 0))  # a NaN shows in its exponential
    most = tl.where(h < heads, most, 0.0)
    total = tl.full((HEADS,), 0, tl.float32)
    for first in range(0, count, ROWS):
        r = first + tl.arange(0, ROWS)
        inside = valid_rows(extents, begin, r, count, KIND)[:, None] & (h < heads)[None, :]
        x = tl.load(logits + (begin + r)[:, None] * heads + h[None, :], mask=inside, other=0.0)
        total += tl.sum(tl.where(inside, tl.exp(x - most[None, :]), 0.0), 0)
    inverse = 1.0 / tl.where(h < heads, total, 1.0)
    own = item.to(tl.int64) * heads + h
    tl.store(statistics + own, most, mask=h < heads)
    tl.store(statistics + n.to(tl.int64) * heads + own, inverse, mask=h < heads)
    if KIND.WEIGHTS:
        for first in range(0, width, ROWS):
            r = first + tl.arange(0, ROWS)
            inside = valid_rows(extents, begin, r, count, KIND)[:, None] & (h < heads)[None, :]
            x = tl.load(logits + (begin + r)[:, None] * heads + h[None, :], mask=inside, other=0.0)
            made = tl.where(inside, tl.exp(x - most[None, :]) * inverse[None, :], 0.0)
            to = weights + own[None, :] * width + r[:, None]
            tl.store(to, made, mask=(r < width)[:, None] & (h < heads)[None, :])
