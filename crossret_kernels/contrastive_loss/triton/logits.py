"""Logits of a tile of scores in Triton."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from crossret_kernels.gpu.triton_scores import positive_pairs, tile_places

LOWEST = tl.constexpr(-3.40282347e38)  # least finite float32


class LogitKind(NamedTuple):
    """Compile-time constants of the kernels: presence of ids; SMOOTHED, targets of all pairs."""

    IMAGE_IDS: bool
    CAPTION_IDS: bool
    SMOOTHED: bool


@triton.jit
def tile_logits(
    scores, scale, bias, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset,
    KIND: tl.constexpr,
):  # fmt: skip
    """(Rows, columns, scores, logits, mask of positives) of the tile that begins at a row and a column.

    A pair of score −∞ is left out: its score is 0, its logit −∞, and it is no positive.
    """
    rows, columns, in_rows, in_columns, _positives, _matched = tile_places(row, column, n_rows, n_columns, offset)
    starts = scores + rows.to(tl.int64) * stride
    inside = in_rows[:, None] & in_columns[None, :]
    s = tl.load(starts[:, None] + columns[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    left_out = s < LOWEST
    s = tl.where(left_out, 0.0, s)
    logits = tl.where(left_out, float("-inf"), s * scale + bias)
    positive = positive_pairs(image_ids, caption_ids, rows, columns, in_rows, in_columns, offset, KIND)
    return rows, columns, s, logits, positive & ~left_out


@triton.jit
def total(x):
    """Sum of a tile."""
    return tl.sum(tl.sum(x, 1), 0)
