"""Ranking losses in Triton: the scores' gradient, written in one pass over them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_scores import COLUMNS, ROWS, ScoreMatrix, gradient_of, store_gradient
from crossret_kernels.ranking_loss.triton.hinges import HingeKind, scaled, tile_hinges


@triton.jit
def pulls(hinges, places, grads, keys, slope, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """∂loss/∂hinge times a gradient; 0 where there is no hinge, whatever the gradient."""
    if NEGATIVES == 0:
        made = tl.where(places == keys, grads, 0.0)
    elif NEGATIVES == 1:
        made = tl.where(hinges == 0.0, 0.0, grads)
    else:
        # (h / loss)ᵖ⁻¹: M cancels
        made = tl.where(hinges == 0.0, 0.0, grads * scaled(hinges, keys, slope, SLOPE)[1])
    return made


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "grad_stride", "offset"],
    do_not_specialize_on_alignment=["grad_loss", "scores", "image_ids", "caption_ids"],
)
def score_gradients(
    grad_loss, scores, image_ids, caption_ids, out, n_rows, n_columns, stride, offset, grad_stride, share, statistics,
    margin, slope, KIND: tl.constexpr,
):  # fmt: skip
    """A tile of the scores' gradient; a positive has `share` of the loss's."""
    NEGATIVES: tl.constexpr = KIND.NEGATIVES
    SLOPE: tl.constexpr = KIND.SLOPE
    across = tl.cdiv(n_columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS
    column = tl.program_id(0) % across * COLUMNS
    rows, columns, row_hinges, column_hinges = tile_hinges(
        scores, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset, margin,
        KIND,
    )  # fmt: skip
    at = columns - offset
    in_rows = rows < n_rows
    matched = (at >= 0) & (at < n_rows)
    row_grads = tl.load(grad_loss + rows.to(tl.int64) * grad_stride, mask=in_rows, other=0.0) * share
    column_grads = tl.load(grad_loss + at.to(tl.int64) * grad_stride, mask=matched, other=0.0) * share
    row_keys = tl.load(statistics + rows, mask=in_rows, other=-1.0)
    column_keys = tl.load(statistics + 2 * n_rows + at, mask=matched, other=-1.0)
    totals = tl.load(statistics + n_rows + rows, mask=in_rows, other=0.0)
    totals += tl.load(statistics + 3 * n_rows + rows, mask=in_rows, other=0.0)
    grads = pulls(row_hinges, columns[None, :], row_grads[:, None], row_keys[:, None], slope, NEGATIVES, SLOPE)
    grads += pulls(column_hinges, rows[:, None], column_grads[None, :], column_keys[None, :], slope, NEGATIVES, SLOPE)
    of_positives = tl.where(totals == 0.0, 0.0, 0.0 - row_grads * totals)
    grads = tl.where(columns[None, :] == rows[:, None] + offset, of_positives[:, None], grads)
    store_gradient(out, n_rows, n_columns, rows, columns, grads)


def gradient(
    grad_loss: Tensor, statistics: Tensor, scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    margin: float, negatives: int, p: float, reduction: int, offset: int,
) -> Tensor:  # fmt: skip
    """`crossret::triplet_loss_triton_backward`: the scores' gradient, of the loss's, in their dtype."""
    if not scores.size(0):
        return torch.empty_like(scores)
    matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
    kind, others = HingeKind.of(matrix, negatives, p), (statistics, margin, p - 1)
    return gradient_of(score_gradients, kind, matrix, grad_loss, reduction, *others)
