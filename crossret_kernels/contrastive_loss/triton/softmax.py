"""InfoNCE in Triton: one pass over the scores for statistics of rows and columns, one more for their gradient.

Statistics of a row or column of logits z: the greatest m, Σ e^(z − m), of positives Σ (z − m) and
their number, of all Σ (z − m) and their number, which are kept where targets are smoothed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.contrastive_loss.options import KEPT
from crossret_kernels.contrastive_loss.triton.logits import (
    COLUMNS,
    LOWEST,
    ROWS,
    Call,
    store_gradient,
    tile_logits,
    total,
)
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.tuning import ContrastiveLoss

PARTS, POSITIVES = tl.constexpr(ContrastiveLoss.PARTS), tl.constexpr(ContrastiveLoss.POSITIVES)


@triton.jit
def reduced(m, powers, positives, n_positives, all, n_all, axis: tl.constexpr):
    """Statistics brought together over an axis."""
    most = tl.max(m, axis)
    less = m - tl.expand_dims(most, axis)
    return (
        most,
        tl.sum(powers * tl.exp(less), axis),
        tl.sum(positives + n_positives * less, axis),
        tl.sum(n_positives, axis),
        tl.sum(all + n_all * less, axis),
        tl.sum(n_all, axis),
    )


@triton.jit
def merged(m, powers, positives, n_positives, all, n_all, m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2):
    """Statistics with those of later places."""
    most = tl.where(m_2 > m, m_2, m)
    less, less_2 = m - most, m_2 - most
    return (
        most,
        powers * tl.exp(less) + powers_2 * tl.exp(less_2),
        positives + n_positives * less + positives_2 + n_positives_2 * less_2,
        n_positives + n_positives_2,
        all + n_all * less + all_2 + n_all_2 * less_2,
        n_all + n_all_2,
    )


@triton.jit
def of_logits(logits, positive, axis: tl.constexpr):
    """Statistics of a tile's rows or columns."""
    m = tl.max(logits, axis)
    m = tl.where(m < LOWEST, LOWEST, m)
    z = logits - tl.expand_dims(m, axis)
    here = tl.where(logits < LOWEST, 0.0, 1.0)
    ones = tl.where(positive, 1.0, 0.0)
    return (
        m,
        tl.sum(tl.exp(z), axis),
        tl.sum(tl.where(positive, z, 0.0), axis),
        tl.sum(ones, axis),
        tl.sum(tl.where(logits < LOWEST, 0.0, z), axis),
        tl.sum(here, axis),
    )


@triton.jit
def load_statistics(at, stride, mask, SMOOTHED: tl.constexpr):
    """Kept ones, of nothing where masked."""
    m = tl.load(at, mask=mask, other=LOWEST)
    powers = tl.load(at + stride, mask=mask, other=0.0)
    positives = tl.load(at + 2 * stride, mask=mask, other=0.0)
    n_positives = tl.load(at + 3 * stride, mask=mask, other=0.0)
    all = tl.load(at + 4 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0
    n_all = tl.load(at + 5 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0
    return m, powers, positives, n_positives, all, n_all


@triton.jit
def store_statistics(at, stride, mask, m, powers, positives, n_positives, all, n_all, SMOOTHED: tl.constexpr):
    tl.store(at, m, mask=mask)
    tl.store(at + stride, powers, mask=mask)
    tl.store(at + 2 * stride, positives, mask=mask)
    tl.store(at + 3 * stride, n_positives, mask=mask)
    if SMOOTHED:
        tl.store(at + 4 * stride, all, mask=mask)
        tl.store(at + 5 * stride, n_all, mask=mask)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "programs", "per_program"],
    do_not_specialize_on_alignment=["scores", "scale", "image_ids", "caption_ids"],
)
def logit_statistics(
    scores, scale, image_ids, caption_ids, parts, n_rows, n_columns, stride, offset, programs, per_program,
    KIND: tl.constexpr,
):  # fmt: skip
    """A program's blocks of rows, all columns of them: statistics of the rows, and what they add to every column."""
    SMOOTHED: tl.constexpr = KIND.SMOOTHED
    first = tl.program_id(0) * per_program
    own = parts + tl.program_id(0).to(tl.int64) * 6 * n_rows
    of_rows = parts + programs.to(tl.int64) * 6 * n_rows
    by = tl.load(scale)
    for block in range(first, tl.minimum(first + per_program, tl.cdiv(n_rows, ROWS))):
        m = tl.full((ROWS,), LOWEST, tl.float32)
        powers = tl.full((ROWS,), 0, tl.float32)
        positives = tl.full((ROWS,), 0, tl.float32)
        n_positives = tl.full((ROWS,), 0, tl.float32)
        all = tl.full((ROWS,), 0, tl.float32)
        n_all = tl.full((ROWS,), 0, tl.float32)
        for column in range(0, n_columns, COLUMNS):
            _rows, columns, _s, logits, positive = tile_logits(
                scores, by, 0.0, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset,
                KIND,
            )  # fmt: skip
            m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2 = of_logits(logits, positive, 1)
            m, powers, positives, n_positives, all, n_all = merged(
                m, powers, positives, n_positives, all, n_all,
                m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2,
            )  # fmt: skip
            at = columns - offset
            matched = (at >= 0) & (at < n_rows)
            m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2 = of_logits(logits, positive, 0)
            if block > first:
                m_1, powers_1, positives_1, n_positives_1, all_1, n_all_1 = load_statistics(
                    own + at, n_rows, matched, SMOOTHED
                )
                m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2 = merged(
                    m_1, powers_1, positives_1, n_positives_1, all_1, n_all_1,
                    m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2,
                )  # fmt: skip
            store_statistics(
                own + at, n_rows, matched, m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2, SMOOTHED
            )
        tl.debug_barrier()  # columns' statistics are read again, by whichever thread
        rows = block * ROWS + tl.arange(0, ROWS)
        store_statistics(of_rows + rows, n_rows, rows < n_rows, m, powers, positives, n_positives, all, n_all, SMOOTHED)


@triton.jit
def finished(to, stride, mask, smoothing, m, powers, positives, n_positives, all, n_all):
    """The loss of rows or columns; stores what their gradient is made of, zeros where there is no positive."""
    some = n_positives > 0.0
    target = tl.where(some, (1.0 - smoothing) / tl.where(some, n_positives, 1.0), 0.0)
    of_all = tl.where(some & (n_all > 0.0), smoothing / tl.where(n_all > 0.0, n_all, 1.0), 0.0)
    tl.store(to, m, mask=mask)
    tl.store(to + stride, tl.where(some, 1.0 / tl.where(some, powers, 1.0), 0.0), mask=mask)
    tl.store(to + 2 * stride, target, mask=mask)
    tl.store(to + 3 * stride, of_all, mask=mask)
    return tl.where(some, tl.log(tl.where(some, powers, 1.0)) - target * positives - of_all * all, 0.0)


@triton.jit(do_not_specialize=["n_rows", "programs"])
def losses_of_logits(losses, statistics, parts, n_rows, programs, smoothing, KIND: tl.constexpr):
    """Brings columns' statistics together, always in the same order; losses of some positives, and what is kept."""
    SMOOTHED: tl.constexpr = KIND.SMOOTHED
    rows = tl.program_id(0) * POSITIVES + tl.arange(0, POSITIVES)
    inside = rows < n_rows
    m = tl.full((POSITIVES,), LOWEST, tl.float32)
    powers = tl.full((POSITIVES,), 0, tl.float32)
    positives = tl.full((POSITIVES,), 0, tl.float32)
    n_positives = tl.full((POSITIVES,), 0, tl.float32)
    all = tl.full((POSITIVES,), 0, tl.float32)
    n_all = tl.full((POSITIVES,), 0, tl.float32)
    for first in range(0, programs, PARTS):
        part = first + tl.arange(0, PARTS)
        at = parts + part.to(tl.int64)[:, None] * 6 * n_rows + rows[None, :]
        m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2 = load_statistics(
            at, n_rows, (part < programs)[:, None] & inside[None, :], SMOOTHED
        )
        m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2 = reduced(
            m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2, 0
        )
        m, powers, positives, n_positives, all, n_all = merged(
            m, powers, positives, n_positives, all, n_all,
            m_2, powers_2, positives_2, n_positives_2, all_2, n_all_2,
        )  # fmt: skip
    of_columns = statistics + n_rows.to(tl.int64) * 4 + rows
    of_column = finished(of_columns, n_rows, inside, smoothing, m, powers, positives, n_positives, all, n_all)
    of_rows = parts + programs.to(tl.int64) * 6 * n_rows + rows
    m, powers, positives, n_positives, all, n_all = load_statistics(of_rows, n_rows, inside, SMOOTHED)
    of_row = finished(statistics + rows, n_rows, inside, smoothing, m, powers, positives, n_positives, all, n_all)
    tl.store(losses + rows, (of_row + of_column) / 2, mask=inside)


def loss(
    scores: Tensor, scale: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    label_smoothing: float, reduction: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::infonce_loss_triton`: the loss, float32, and statistics (8, n_rows) that its gradient is made of."""
    n_rows = scores.shape[0]
    losses = torch.empty(n_rows, dtype=torch.float32, device=scores.device)
    statistics = losses.new_empty((KEPT, n_rows))
    if n_rows:
        call = Call.of(scores, image_ids, caption_ids, offset, label_smoothing > 0)
        per_program = -(-call.row_blocks // ContrastiveLoss.PROGRAMS)
        programs = -(-call.row_blocks // per_program)
        parts = losses.new_empty((programs + 1, 6, n_rows))  # the last of the rows
        launch(
            logit_statistics, (programs, 1, 1),
            (call.scores, scale, *call.ids, parts, *call.sizes, programs, per_program), call.kind, call.key, 8,
        )  # fmt: skip
        launch(
            losses_of_logits, (-(-n_rows // POSITIVES.value), 1, 1),
            (losses, statistics, parts, n_rows, programs, label_smoothing), call.kind, call.key,
        )  # fmt: skip
    if reduction == 2:
        return losses, statistics
    return (losses.mean() if reduction == 1 and n_rows else losses.sum()), statistics


@triton.jit
def pulls(at, stride, grads, mask):
    """Of rows or columns: the greatest logit, and what is kept besides by half their gradients."""
    most = tl.load(at, mask=mask, other=-LOWEST)  # of what has no loss e^(z − most) is 0
    powers = tl.load(at + stride, mask=mask, other=0.0)
    positives = tl.load(at + 2 * stride, mask=mask, other=0.0)
    all = tl.load(at + 3 * stride, mask=mask, other=0.0)
    return (
        most,
        tl.where(powers == 0.0, 0.0, grads * powers),
        tl.where(positives == 0.0, 0.0, grads * positives),
        tl.where(all == 0.0, 0.0, grads * all),
    )


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "grad_stride"],
    do_not_specialize_on_alignment=["grad_loss", "scores", "scale", "image_ids", "caption_ids"],
)
def logit_gradients(
    grad_loss, statistics, scores, scale, image_ids, caption_ids, out, sums, n_rows, n_columns, stride, offset,
    grad_stride, share,
    KIND: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient, and its part of the scale's; `share` of the loss's gradient is a row's or column's."""
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
    most, powers, positives, all = pulls(statistics + rows, n_rows, grads, in_rows)
    grads = tl.load(grad_loss + at.to(tl.int64) * grad_stride, mask=matched, other=0.0) * share
    of_columns = statistics + n_rows.to(tl.int64) * 4 + at
    most_2, powers_2, positives_2, all_2 = pulls(of_columns, n_rows, grads, matched)
    gradient = tl.exp(logits - most[:, None]) * powers[:, None] + tl.exp(logits - most_2[None, :]) * powers_2[None, :]
    gradient -= tl.where(positive, positives[:, None] + positives_2[None, :], 0.0)
    if KIND.SMOOTHED:
        gradient -= all[:, None] + all_2[None, :]
    gradient = tl.where(logits < LOWEST, 0.0, gradient)
    tl.store(sums + tl.program_id(0), total(s * gradient))
    store_gradient(out, n_rows, n_columns, rows, columns, gradient * by)


def gradient(
    grad_loss: Tensor, statistics: Tensor, scores: Tensor, scale: Tensor, image_ids: Tensor | None,
    caption_ids: Tensor | None, label_smoothing: float, reduction: int, offset: int, of_scores: bool, of_scale: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::infonce_loss_triton_backward`: the scores' gradient, in their dtype, and the scale's."""
    n_rows = scores.shape[0]
    out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    sums = statistics.new_zeros(1)
    if n_rows:
        call = Call.of(scores, image_ids, caption_ids, offset, label_smoothing > 0)
        sums = statistics.new_empty(call.tiles)
        launch(
            logit_gradients, (call.tiles, 1, 1),
            (grad_loss, statistics, call.scores, scale, *call.ids, out, sums, *call.sizes,
             grad_loss.stride(0) if reduction == 2 else 0, 0.5 / n_rows if reduction == 1 else 0.5),
            call.kind, (call.key, grad_loss.dtype), warps=8,
        )  # fmt: skip
    return out if of_scores else out.new_empty(0), sums.sum() if of_scale else sums.new_empty(0)
