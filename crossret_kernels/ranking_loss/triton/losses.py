"""Ranking losses in Triton: one pass over the scores for statistics of rows and columns, of which losses are made, and
one more for the scores' gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu import triton_scores
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_scores import COLUMNS, PARTS, POSITIVES, ROWS, ScoreMatrix, gradient_of, store_gradient
from crossret_kernels.gpu.tuning import ScoreLoss
from crossret_kernels.ranking_loss.triton.hinges import (
    NOWHERE,
    HingeKind,
    load_statistics,
    merged,
    no_statistics,
    reduced,
    scaled,
    store_statistics,
    tile_hinges,
    tile_statistics,
)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "programs", "per_program"],
    do_not_specialize_on_alignment=["scores", "image_ids", "caption_ids"],
)
def hinge_statistics(
    scores, image_ids, caption_ids, parts, n_rows, n_columns, stride, offset, margin, slope, programs, per_program,
    KIND: tl.constexpr,
):  # fmt: skip
    """Statistics of a program's blocks of rows over all columns, and its part of those of every column."""
    NEGATIVES: tl.constexpr = KIND.NEGATIVES
    SLOPE: tl.constexpr = KIND.SLOPE
    first = tl.program_id(0) * per_program
    column_parts = parts + tl.program_id(0).to(tl.int64) * 3 * n_rows
    row_parts = parts + programs.to(tl.int64) * 3 * n_rows
    for block in range(first, tl.minimum(first + per_program, tl.cdiv(n_rows, ROWS))):
        row_statistics = no_statistics(ROWS, NEGATIVES)
        for column in range(0, n_columns, COLUMNS):
            rows, columns, row_hinges, column_hinges = tile_hinges(
                scores, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset, margin,
                KIND,
            )  # fmt: skip
            shape: tl.constexpr = (ROWS, COLUMNS)
            numbers = tl.broadcast_to(columns[None, :], shape)
            statistics = tile_statistics(row_hinges, numbers, slope, 1, NEGATIVES, SLOPE)
            row_statistics = merged(row_statistics, statistics, slope, NEGATIVES, SLOPE)
            at = columns - offset
            matched = (at >= 0) & (at < n_rows)
            numbers = tl.broadcast_to(rows[:, None], shape)
            statistics = tile_statistics(column_hinges, numbers, slope, 0, NEGATIVES, SLOPE)
            if block > first:
                earlier = load_statistics(column_parts + at, n_rows, matched, NEGATIVES)
                statistics = merged(earlier, statistics, slope, NEGATIVES, SLOPE)
            store_statistics(column_parts + at, n_rows, matched, statistics, NEGATIVES)
        tl.debug_barrier()  # columns' statistics are read again, by any thread
        rows = block * ROWS + tl.arange(0, ROWS)
        store_statistics(row_parts + rows, n_rows, rows < n_rows, row_statistics, NEGATIVES)


@triton.jit
def finished(statistics, p, NEGATIVES: tl.constexpr):
    """(loss, key, total): the key is the place of the hardest or the loss of softmax, the total Σ ∂loss/∂hinge."""
    a, b, c = statistics
    if NEGATIVES == 0:
        loss, key, total = a, tl.where(b == NOWHERE, -1, b).to(tl.float32), tl.where(a == 0.0, 0.0, 1.0)
    elif NEGATIVES == 1:
        loss, key, total = a, b, b
    else:
        b = tl.where(a == 0.0, 1.0, b)  # of no hinges
        root = tl.exp2(tl.log2(b) / p)
        loss, key, total = a * root, a * root, c * root / b
    return loss, key, total


@triton.jit(do_not_specialize=["n_rows", "programs", "share"])
def losses_of_statistics(
    losses, loss, statistics, parts, n_rows, programs, slope, p, share, KIND: tl.constexpr
):  # fmt: skip
    """Merges the programs' statistics of columns, in a fixed order; stores losses, keys and totals of positives.

    A single program also sums the losses, times `share`.
    """
    NEGATIVES: tl.constexpr = KIND.NEGATIVES
    SLOPE: tl.constexpr = KIND.SLOPE
    loss_sum = tl.full((), 0, tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, POSITIVES), tl.num_programs(0)):
        positives = block * POSITIVES + tl.arange(0, POSITIVES)
        inside = positives < n_rows
        totals = no_statistics(POSITIVES, NEGATIVES)
        for first in range(0, programs, PARTS):
            part = first + tl.arange(0, PARTS)
            at = parts + part.to(tl.int64)[:, None] * 3 * n_rows + positives[None, :]
            part_mask = (part < programs)[:, None] & inside[None, :]
            part_statistics = reduced(load_statistics(at, n_rows, part_mask, NEGATIVES), slope, 0, NEGATIVES, SLOPE)
            totals = merged(totals, part_statistics, slope, NEGATIVES, SLOPE)
        column_loss, column_key, column_total = finished(totals, p, NEGATIVES)
        row_places = parts + programs.to(tl.int64) * 3 * n_rows + positives
        row_loss, row_key, row_total = finished(load_statistics(row_places, n_rows, inside, NEGATIVES), p, NEGATIVES)
        tl.store(losses + positives, row_loss + column_loss, mask=inside)
        tl.store(statistics + positives, row_key, mask=inside)
        tl.store(statistics + n_rows + positives, row_total, mask=inside)
        tl.store(statistics + 2 * n_rows + positives, column_key, mask=inside)
        tl.store(statistics + 3 * n_rows + positives, column_total, mask=inside)
        loss_sum += tl.sum(tl.where(inside, row_loss + column_loss, 0.0))
    if tl.num_programs(0) == 1:
        tl.store(loss, loss_sum * share)


def loss(
    scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    margin: float, negatives: int, p: float, reduction: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::triplet_loss_triton`: the loss, float32, and statistics (4, n_rows) that its gradient is made of."""
    n_rows = scores.shape[0]
    losses = torch.empty(n_rows, dtype=torch.float32, device=scores.device)
    total = losses.new_empty(())
    statistics = losses.new_empty((4, n_rows))
    if n_rows:
        matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
        kind = HingeKind.of(matrix, negatives, p)
        programs, per_program = matrix.programs
        parts = losses.new_empty((programs + 1, 3, n_rows))  # the last is of the rows
        launch(
            hinge_statistics, (programs, 1, 1),
            (matrix.scores, *matrix.ids, parts, *matrix.sizes, margin, p - 1, programs, per_program), kind, matrix.key,
            8,
        )  # fmt: skip
        alone = reduction != 2 and n_rows <= ScoreLoss.SUMMED
        launch(
            losses_of_statistics, (1 if alone else -(-n_rows // POSITIVES.value), 1, 1),
            (losses, total, statistics, parts, n_rows, programs, p - 1, p, 1 / n_rows if reduction == 1 else 1.0), kind,
            matrix.key,
        )  # fmt: skip
        if alone:
            return total, statistics
    return triton_scores.reduced(losses, reduction), statistics


@triton.jit
def pulls(hinges, places, grads, keys, slope, NEGATIVES: tl.constexpr, SLOPE: tl.constexpr):
    """∂loss/∂hinge times a gradient; 0 where there is no hinge, whatever the gradient."""
    if NEGATIVES == 0:
        pull = tl.where(places == keys, grads, 0.0)
    elif NEGATIVES == 1:
        pull = tl.where(hinges == 0.0, 0.0, grads)
    else:
        # (h / loss)ᵖ⁻¹: M cancels
        pull = tl.where(hinges == 0.0, 0.0, grads * scaled(hinges, keys, slope, SLOPE)[1])
    return pull


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
    positive_grads = tl.where(totals == 0.0, 0.0, 0.0 - row_grads * totals)
    grads = tl.where(columns[None, :] == rows[:, None] + offset, positive_grads[:, None], grads)
    store_gradient(out, n_rows, n_columns, rows, columns, grads)


def gradient(
    grad_loss: Tensor, statistics: Tensor, scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    margin: float, negatives: int, p: float, reduction: int, offset: int,
) -> Tensor:  # fmt: skip
    """`crossret::triplet_loss_triton_backward`: the scores' gradient, of the loss's, in their dtype."""
    if not scores.size(0):
        return torch.empty_like(scores)
    matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
    kind, operands = HingeKind.of(matrix, negatives, p), (statistics, margin, p - 1)
    return gradient_of(score_gradients, kind, matrix, grad_loss, reduction, *operands)
