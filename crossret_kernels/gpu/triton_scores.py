"""Tiles of a score matrix as Triton kernels of losses read them: one program a block of rows, or a tile."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.tuning import ScoreLoss
from crossret_kernels.inputs.score_matrix import REDUCTIONS

ROWS, COLUMNS = tl.constexpr(ScoreLoss.ROWS), tl.constexpr(ScoreLoss.COLUMNS)
PARTS, POSITIVES = tl.constexpr(ScoreLoss.PARTS), tl.constexpr(ScoreLoss.POSITIVES)


class ScoreMatrix(NamedTuple):
    """Scores and ids as kernels take them.

    Attributes:
        scores: (n_rows, n_columns), contiguous rows.
        ids: (n_columns,) int64 of images and of captions; any tensor where there are none.
        sizes: rows, columns, stride of the rows, column of the first row's positive.
        has_ids: presence of image ids and of caption ids.
        key: device, dtype and width of the stride, on which compiled kernels depend.
    """

    scores: Tensor
    ids: tuple[Tensor, Tensor]
    sizes: tuple[int, int, int, int]
    has_ids: tuple[bool, bool]
    key: Hashable

    @classmethod
    def of(cls, scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None, offset: int) -> ScoreMatrix:
        scores = scores if scores.stride(1) == 1 else scores.contiguous()
        ids = scores if image_ids is None else image_ids, scores if caption_ids is None else caption_ids
        key = scores.device, scores.dtype, scores.stride(0) >= 2**31
        sizes = *scores.shape, scores.stride(0), offset
        return cls(scores, ids, sizes, (image_ids is not None, caption_ids is not None), key)

    @property
    def row_blocks(self) -> int:
        return -(-self.sizes[0] // ROWS.value)

    @property
    def tiles(self) -> int:
        return self.row_blocks * -(-self.sizes[1] // COLUMNS.value)

    @property
    def programs(self) -> tuple[int, int]:
        """Programs of the pass that finds statistics of rows and columns, and blocks of rows of each."""
        blocks = -(-self.row_blocks // ScoreLoss.PROGRAMS)
        return -(-self.row_blocks // blocks), blocks


def reduced(losses: Tensor, reduction: int) -> Tensor:
    """Losses of all rows (n_rows,), reduced as the place of a name says."""
    if REDUCTIONS[reduction] == "none":
        return losses
    return losses.mean() if REDUCTIONS[reduction] == "mean" and len(losses) else losses.sum()


def gradient_of(
    kernel: Any, kind: Any, matrix: ScoreMatrix, grad_loss: Tensor, reduction: int, *operands: Any, part: float = 1.0
) -> Tensor:
    """The scores' gradient, in their dtype, by a kernel that takes the loss's, scores, ids, the gradient, sizes, the
    stride of the loss's gradient, which share of it a row has, `part` of a positive's, and then the operands.
    """
    out = torch.empty(matrix.scores.shape, dtype=matrix.scores.dtype, device=matrix.scores.device)
    mode = REDUCTIONS[reduction]
    stride, share = grad_loss.stride(0) if mode == "none" else 0, part / len(out) if mode == "mean" else part
    arguments = grad_loss, matrix.scores, *matrix.ids, out, *matrix.sizes, stride, share, *operands
    launch(kernel, (matrix.tiles, 1, 1), arguments, kind, (matrix.key, grad_loss.dtype), warps=8)
    return out


@triton.jit
def tile_places(row, column, n_rows, n_columns, offset):
    """Rows and columns of a tile, the masks of those that exist, the columns' positives and which of these exist."""
    rows = row + tl.arange(0, ROWS)
    columns = column + tl.arange(0, COLUMNS)
    positives = columns - offset
    return rows, columns, rows < n_rows, columns < n_columns, positives, (positives >= 0) & (positives < n_rows)


@triton.jit
def positive_pairs(image_ids, caption_ids, rows, columns, in_rows, in_columns, offset, KIND: tl.constexpr):
    """(ROWS, COLUMNS): pairs on the diagonal, and pairs with equal ids of images or of captions."""
    positive = columns[None, :] == rows[:, None] + offset
    if KIND.IMAGE_IDS:
        row_ids = tl.load(image_ids + rows + offset, mask=in_rows, other=0)
        positive |= row_ids[:, None] == tl.load(image_ids + columns, mask=in_columns, other=0)[None, :]
    if KIND.CAPTION_IDS:
        row_ids = tl.load(caption_ids + rows + offset, mask=in_rows, other=0)
        positive |= row_ids[:, None] == tl.load(caption_ids + columns, mask=in_columns, other=0)[None, :]
    return positive


@triton.jit
def store_gradient(to, n_rows, n_columns, rows, columns, gradient):
    """Stores a tile of the scores' gradient, in its dtype."""
    places = to + rows.to(tl.int64)[:, None] * n_columns + columns[None, :]
    tl.store(places, gradient.to(to.dtype.element_ty), mask=(rows < n_rows)[:, None] & (columns < n_columns)[None, :])
