"""InfoNCE in Triton: one pass over the scores for statistics of rows and columns, one more for their gradient.

Statistics of the logits z of a row or column, six numbers: the maximum m; Σ e^(z − m); over positives Σ (z − m) and
their count; over all pairs Σ (z − m) and their count, which are stored where targets are smoothed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.contrastive_loss.options import KEPT
from crossret_kernels.contrastive_loss.triton.logits import LOWEST, LogitKind, tile_logits, total
from crossret_kernels.gpu import triton_scores
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_scores import (
    COLUMNS,
    PARTS,
    POSITIVES,
    ROWS,
    ScoreMatrix,
    gradient_of,
    store_gradient,
)


@triton.jit
def no_statistics(N: tl.constexpr):
    """Statistics of no logits, (N,)."""
    zeros = tl.full((N,), 0, tl.float32)
    return tl.full((N,), LOWEST, tl.float32), zeros, zeros, zeros, zeros, zeros


@triton.jit
def reduced(statistics, axis: tl.constexpr):
    """Statistics merged along an axis."""
    m, powers, positives, n_positives, pairs, n_pairs = statistics
    top = tl.max(m, axis)
    shifts = m - tl.expand_dims(top, axis)
    return (
        top,
        tl.sum(powers * tl.exp(shifts), axis),
        tl.sum(positives + n_positives * shifts, axis),
        tl.sum(n_positives, axis),
        tl.sum(pairs + n_pairs * shifts, axis),
        tl.sum(n_pairs, axis),
    )


@triton.jit
def merged(first, second):
    """Statistics of two parts of a row or column."""
    m, powers, positives, n_positives, pairs, n_pairs = first
    m_2, powers_2, positives_2, n_positives_2, pairs_2, n_pairs_2 = second
    top = tl.where(m_2 > m, m_2, m)
    shift, shift_2 = m - top, m_2 - top
    return (
        top,
        powers * tl.exp(shift) + powers_2 * tl.exp(shift_2),
        positives + n_positives * shift + positives_2 + n_positives_2 * shift_2,
        n_positives + n_positives_2,
        pairs + n_pairs * shift + pairs_2 + n_pairs_2 * shift_2,
        n_pairs + n_pairs_2,
    )


@triton.jit
def tile_statistics(logits, positive, axis: tl.constexpr):
    """Statistics of a tile's rows or columns."""
    m = tl.max(logits, axis)
    m = tl.where(m < LOWEST, LOWEST, m)
    z = logits - tl.expand_dims(m, axis)
    valid = tl.where(logits < LOWEST, 0.0, 1.0)
    ones = tl.where(positive, 1.0, 0.0)
    return (
        m,
        tl.sum(tl.exp(z), axis),
        tl.sum(tl.where(positive, z, 0.0), axis),
        tl.sum(ones, axis),
        tl.sum(tl.where(logits < LOWEST, 0.0, z), axis),
        tl.sum(valid, axis),
    )


@triton.jit
def load_statistics(at, stride, mask, SMOOTHED: tl.constexpr):
    """Stored statistics; those of no logits where masked out."""
    m = tl.load(at, mask=mask, other=LOWEST)
    powers = tl.load(at + stride, mask=mask, other=0.0)
    positives = tl.load(at + 2 * stride, mask=mask, other=0.0)
    n_positives = tl.load(at + 3 * stride, mask=mask, other=0.0)
    pairs = tl.load(at + 4 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0
    n_pairs = tl.load(at + 5 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0
    return m, powers, positives, n_positives, pairs, n_pairs


@triton.jit
def store_statistics(at, stride, mask, statistics, SMOOTHED: tl.constexpr):
    for number in tl.static_range(6 if SMOOTHED else 4):
        tl.store(at + number * stride, statistics[number], mask=mask)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "programs", "per_program"],
    do_not_specialize_on_alignment=["scores", "scale", "image_ids", "caption_ids"],
)
def logit_statistics(
    scores, scale, image_ids, caption_ids, parts, n_rows, n_columns, stride, offset, programs, per_program,
    KIND: tl.constexpr,
):  # fmt: skip
    """Statistics of a program's blocks of rows over all columns, and its part of those of every column."""
    SMOOTHED: tl.constexpr = KIND.SMOOTHED
    first = tl.program_id(0) * per_program
    column_parts = parts + tl.program_id(0).to(tl.int64) * 6 * n_rows
    row_parts = parts + programs.to(tl.int64) * 6 * n_rows
    by = tl.load(scale)
    for block in range(first, tl.minimum(first + per_program, tl.cdiv(n_rows, ROWS))):
        row_statistics = no_statistics(ROWS)
        for column in range(0, n_columns, COLUMNS):
            _rows, columns, _s, logits, positive = tile_logits(
                scores, by, 0.0, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset,
                KIND,
            )  # fmt: skip
            row_statistics = merged(row_statistics, tile_statistics(logits, positive, 1))
            at = columns - offset
            matched = (at >= 0) & (at < n_rows)
            column_statistics = tile_statistics(logits, positive, 0)
            if block > first:
                earlier = load_statistics(column_parts + at, n_rows, matched, SMOOTHED)
                column_statistics = merged(earlier, column_statistics)
            store_statistics(column_parts + at, n_rows, matched, column_statistics, SMOOTHED)
        tl.debug_barrier()  # columns' statistics are read again, by any thread
        rows = block * ROWS + tl.arange(0, ROWS)
        store_statistics(row_parts + rows, n_rows, rows < n_rows, row_statistics, SMOOTHED)


@triton.jit
def finished(to, stride, mask, smoothing, statistics):
    """The loss of rows or columns; stores the four numbers of their gradient, zeros where there is no positive."""
    m, powers, positives, n_positives, pairs, n_pairs = statistics
    valid = n_positives > 0.0
    target = tl.where(valid, (1.0 - smoothing) / tl.where(valid, n_positives, 1.0), 0.0)
    pair_target = tl.where(valid & (n_pairs > 0.0), smoothing / tl.where(n_pairs > 0.0, n_pairs, 1.0), 0.0)
    tl.store(to, m, mask=mask)
    tl.store(to + stride, tl.where(valid, 1.0 / tl.where(valid, powers, 1.0), 0.0), mask=mask)
    tl.store(to + 2 * stride, target, mask=mask)
    tl.store(to + 3 * stride, pair_target, mask=mask)
    return tl.where(valid, tl.log(tl.where(valid, powers, 1.0)) - target * positives - pair_target * pairs, 0.0)


@triton.jit(do_not_specialize=["n_rows", "programs"])
def losses_of_logits(losses, statistics, parts, n_rows, programs, smoothing, KIND: tl.constexpr):
    """Merges the programs' statistics of columns, in a fixed order; stores losses and their gradients' numbers."""
    SMOOTHED: tl.constexpr = KIND.SMOOTHED
    rows = tl.program_id(0) * POSITIVES + tl.arange(0, POSITIVES)
    inside = rows < n_rows
    totals = no_statistics(POSITIVES)
    for first in range(0, programs, PARTS):
        part = first + tl.arange(0, PARTS)
        at = parts + part.to(tl.int64)[:, None] * 6 * n_rows + rows[None, :]
        part_statistics = load_statistics(at, n_rows, (part < programs)[:, None] & inside[None, :], SMOOTHED)
        totals = merged(totals, reduced(part_statistics, 0))
    column_places = statistics + n_rows.to(tl.int64) * 4 + rows
    column_losses = finished(column_places, n_rows, inside, smoothing, totals)
    row_places = parts + programs.to(tl.int64) * 6 * n_rows + rows
    totals = load_statistics(row_places, n_rows, inside, SMOOTHED)
    row_losses = finished(statistics + rows, n_rows, inside, smoothing, totals)
    tl.store(losses + rows, (row_losses + column_losses) / 2, mask=inside)


def loss(
    scores: Tensor, scale: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    label_smoothing: float, reduction: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::infonce_loss_triton`: the loss, float32, and statistics (8, n_rows) that its gradient is made of."""
    n_rows = scores.shape[0]
    losses = torch.empty(n_rows, dtype=torch.float32, device=scores.device)
    statistics = losses.new_empty((KEPT, n_rows))
    if n_rows:
        matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
        kind = LogitKind(*matrix.has_ids, label_smoothing > 0)
        programs, per_program = matrix.programs
        parts = losses.new_empty((programs + 1, 6, n_rows))  # the last is of the rows
        launch(
            logit_statistics, (programs, 1, 1),
            (matrix.scores, scale, *matrix.ids, parts, *matrix.sizes, programs, per_program), kind, matrix.key, 8,
        )  # fmt: skip
        launch(
            losses_of_logits, (-(-n_rows // POSITIVES.value), 1, 1),
            (losses, statistics, parts, n_rows, programs, label_smoothing), kind, matrix.key,
        )  # fmt: skip
    return triton_scores.reduced(losses, reduction), statistics


@triton.jit
def pulls(at, stride, grads, mask):
    """The greatest logit of rows or columns, and their three other numbers times half their gradients."""
    top = tl.load(at, mask=mask, other=-LOWEST)  # without a loss e^(z − top) is 0
    powers = tl.load(at + stride, mask=mask, other=0.0)
    positives = tl.load(at + 2 * stride, mask=mask, other=0.0)
    pairs = tl.load(at + 3 * stride, mask=mask, other=0.0)
    return (
        top,
        tl.where(powers == 0.0, 0.0, grads * powers),
        tl.where(positives == 0.0, 0.0, grads * positives),
        tl.where(pairs == 0.0, 0.0, grads * pairs),
    )


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "grad_stride"],
    do_not_specialize_on_alignment=["grad_loss", "scores", "scale", "image_ids", "caption_ids"],
)
def logit_gradients(
    grad_loss, scores, image_ids, caption_ids, out, n_rows, n_columns, stride, offset, grad_stride, share, scale,
    statistics, sums, KIND: tl.constexpr,
):  # fmt: skip
    """A tile of the scores' gradient, and its part of the scale's; a row or column has `share` of the loss's."""
    across = tl.cdiv(n_columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS
    column = tl.program_id(0) % across * COLUMNS
    by = tl.load(scale)
    rows, columns, s, logits, positive = tile_logits(
        scores, by, 0.0, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset,
        KIND,
    )  # fmt: skip
    at = columns - offset
    in_rows = rows < n_rows
    matched = (at >= 0) & (at < n_rows)
    grads = tl.load(grad_loss + rows.to(tl.int64) * grad_stride, mask=in_rows, other=0.0) * share
    top, powers, positives, pairs = pulls(statistics + rows, n_rows, grads, in_rows)
    grads = tl.load(grad_loss + at.to(tl.int64) * grad_stride, mask=matched, other=0.0) * share
    column_places = statistics + n_rows.to(tl.int64) * 4 + at
    top_2, powers_2, positives_2, pairs_2 = pulls(column_places, n_rows, grads, matched)
    gradient = tl.exp(logits - top[:, None]) * powers[:, None] + tl.exp(logits - top_2[None, :]) * powers_2[None, :]
    gradient -= tl.where(positive, positives[:, None] + positives_2[None, :], 0.0)
    if KIND.SMOOTHED:
        gradient -= pairs[:, None] + pairs_2[None, :]
    gradient = tl.where(logits < LOWEST, 0.0, gradient)
    tl.store(sums + tl.program_id(0), total(s * gradient))
    store_gradient(out, n_rows, n_columns, rows, columns, gradient * by)


def gradient(
    grad_loss: Tensor, statistics: Tensor, scores: Tensor, scale: Tensor, image_ids: Tensor | None,
    caption_ids: Tensor | None, label_smoothing: float, reduction: int, offset: int, score_grad: bool, scale_grad: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::infonce_loss_triton_backward`: the scores' gradient, in their dtype, and the scale's."""
    out, sums = torch.empty_like(scores), statistics.new_zeros(1)
    if scores.size(0):
        matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
        sums, kind = statistics.new_empty(matrix.tiles), LogitKind(*matrix.has_ids, label_smoothing > 0)
        operands = scale, statistics, sums
        out = gradient_of(logit_gradients, kind, matrix, grad_loss, reduction, *operands, part=0.5)
    return out if score_grad else out.new_empty(0), sums.sum() if scale_grad else sums.new_empty(0)
