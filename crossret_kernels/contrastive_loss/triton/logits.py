"""Logits of a tile of scores in Triton, and what launches of kernels over tiles have in common."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.tuning import ContrastiveLoss

ROWS, COLUMNS = tl.constexpr(ContrastiveLoss.ROWS), tl.constexpr(ContrastiveLoss.COLUMNS)
LOWEST = tl.constexpr(-3.40282347e38)  # finite number


class Kind(NamedTuple):
    """What kernels over tiles are compiled for; SMOOTHED is whether targets go to all pairs."""

    IMAGE_IDS: bool
    CAPTION_IDS: bool
    SMOOTHED: bool


class Call(NamedTuple):
    """Arguments of every kernel over tiles, and what compiled ones depend on beside their kind."""

    scores: Tensor
    ids: tuple[Tensor, Tensor]  # any tensor where there are none
    sizes: tuple[int, int, int, int]  # rows, columns, scores from row to row, the first row's positive
    kind: Kind
    key: Hashable

    @classmethod
    def of(
        cls, scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None, offset: int, smoothed: bool
    ) -> Call:
        scores = scores if scores.stride(1) == 1 else scores.contiguous()
        ids = scores if image_ids is None else image_ids, scores if caption_ids is None else caption_ids
        kind = Kind(image_ids is not None, caption_ids is not None, smoothed)
        key = scores.device, scores.dtype, scores.stride(0) >= 2**31
        return cls(scores, ids, (*scores.shape, scores.stride(0), offset), kind, key)

    @property
    def row_blocks(self) -> int:
        return -(-self.sizes[0] // ROWS.value)

    @property
    def tiles(self) -> int:
        return self.row_blocks * -(-self.sizes[1] // COLUMNS.value)


@triton.jit
def tile_logits(
    scores, scale, bias, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset,
    KIND: tl.constexpr,
):  # fmt: skip
    """Of the tile that begins at a row and a column: its rows, its columns, scores, logits, which are positives.

    Of pairs that are left out scores are 0 and logits −∞, and none is a positive.
    """
    rows = row + tl.arange(0, ROWS)
    columns = column + tl.arange(0, COLUMNS)
    in_rows = rows < n_rows
    in_columns = columns < n_columns
    starts = scores + rows.to(tl.int64) * stride
    inside = in_rows[:, None] & in_columns[None, :]
    s = tl.load(starts[:, None] + columns[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    left_out = s < LOWEST
    s = tl.where(left_out, 0.0, s)
    logits = tl.where(left_out, float("-inf"), s * scale + bias)
    positive = columns[None, :] == rows[:, None] + offset
    if KIND.IMAGE_IDS:
        own = tl.load(image_ids + rows + offset, mask=in_rows, other=0)
        positive |= own[:, None] == tl.load(image_ids + columns, mask=in_columns, other=0)[None, :]
    if KIND.CAPTION_IDS:
        own = tl.load(caption_ids + rows + offset, mask=in_rows, other=0)
        positive |= own[:, None] == tl.load(caption_ids + columns, mask=in_columns, other=0)[None, :]
    return rows, columns, s, logits, positive & ~left_out


@triton.jit
def store_gradient(to, n_rows, n_columns, rows, columns, gradient):
    """Of a tile, as the scores' gradient has it."""
    places = to + rows.to(tl.int64)[:, None] * n_columns + columns[None, :]
    tl.store(places, gradient.to(to.dtype.element_ty), mask=(rows < n_rows)[:, None] & (columns < n_columns)[None, :])


@triton.jit
def total(x):
    """Of a tile."""
    return tl.sum(tl.sum(x, 1), 0)
