"""Ranking losses in Triton: one pass over the scores for statistics of rows and columns, and losses made of those."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.tuning import TripletLoss
from crossret_kernels.ranking_loss.triton.hinges import (
    COLUMNS,
    NOWHERE,
    ROWS,
    key_of,
    kind_of,
    load_statistics,
    merged,
    of_hinges,
    reduced,
    store_statistics,
    tile_hinges,
)

PARTS, POSITIVES = tl.constexpr(TripletLoss.PARTS), tl.constexpr(TripletLoss.POSITIVES)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "programs", "per_program"],
    do_not_specialize_on_alignment=["scores", "image_ids", "caption_ids"],
)
def hinge_statistics(
    scores, image_ids, caption_ids, parts, n_rows, n_columns, stride, offset, margin, slope, programs, per_program,
    KIND: tl.constexpr,
):  # fmt: skip
    """A program's blocks of rows, all columns of them: statistics of the rows, and what they add to every column."""
    NEGATIVES: tl.constexpr = KIND.NEGATIVES
    SLOPE: tl.constexpr = KIND.SLOPE
    first = tl.program_id(0) * per_program
    own = parts + tl.program_id(0).to(tl.int64) * 3 * n_rows
    of_rows = parts + programs.to(tl.int64) * 3 * n_rows
    for block in range(first, tl.minimum(first + per_program, tl.cdiv(n_rows, ROWS))):
        a = tl.full((ROWS,), 0, tl.float32)
        b = tl.full((ROWS,), NOWHERE, tl.int32) if NEGATIVES == 0 else tl.full((ROWS,), 0, tl.float32)
        c = tl.full((ROWS,), 0, tl.float32)
        for column in range(0, n_columns, COLUMNS):
            rows, columns, row_hinges, column_hinges = tile_hinges(
                scores, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset, margin,
                KIND,
            )  # fmt: skip
            shape: tl.constexpr = (ROWS, COLUMNS)
            numbers = tl.broadcast_to(columns[None, :], shape)
            new_a, new_b, new_c = of_hinges(row_hinges, numbers, slope, 1, NEGATIVES, SLOPE)
            a, b, c = merged(a, b, c, new_a, new_b, new_c, slope, NEGATIVES, SLOPE)
            at = columns - offset
            matched = (at >= 0) & (at < n_rows)
            numbers = tl.broadcast_to(rows[:, None], shape)
            new_a, new_b, new_c = of_hinges(column_hinges, numbers, slope, 0, NEGATIVES, SLOPE)
            if block > first:
                old_a, old_b, old_c = load_statistics(own + at, n_rows, matched, NEGATIVES)
                new_a, new_b, new_c = merged(old_a, old_b, old_c, new_a, new_b, new_c, slope, NEGATIVES, SLOPE)
            store_statistics(own + at, n_rows, matched, new_a, new_b, new_c, NEGATIVES)
        tl.debug_barrier()  # columns' statistics are read again, by whichever thread
        rows = block * ROWS + tl.arange(0, ROWS)
        store_statistics(of_rows + rows, n_rows, rows < n_rows, a, b, c, NEGATIVES)


@triton.jit
def finished(a, b, c, p, NEGATIVES: tl.constexpr):
    """(loss, key, total): key is the place of the hardest or the loss by softmax, total is Σ ∂loss/∂hinge."""
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
    """Brings columns' statistics together, always in the same order; losses, keys and totals of positives.

    One program alone sums the losses up too, of each of which `share` counts.
    """
    NEGATIVES: tl.constexpr = KIND.NEGATIVES
    SLOPE: tl.constexpr = KIND.SLOPE
    summed = tl.full((), 0, tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n_rows, POSITIVES), tl.num_programs(0)):
        positives = block * POSITIVES + tl.arange(0, POSITIVES)
        inside = positives < n_rows
        a = tl.full((POSITIVES,), 0, tl.float32)
        b = tl.full((POSITIVES,), NOWHERE, tl.int32) if NEGATIVES == 0 else tl.full((POSITIVES,), 0, tl.float32)
        c = tl.full((POSITIVES,), 0, tl.float32)
        for first in range(0, programs, PARTS):
            part = first + tl.arange(0, PARTS)
            at = parts + part.to(tl.int64)[:, None] * 3 * n_rows + positives[None, :]
            there = (part < programs)[:, None] & inside[None, :]
            some_a, some_b, some_c = load_statistics(at, n_rows, there, NEGATIVES)
            some_a, some_b, some_c = reduced(some_a, some_b, some_c, slope, 0, NEGATIVES, SLOPE)
            a, b, c = merged(a, b, c, some_a, some_b, some_c, slope, NEGATIVES, SLOPE)
        of_column, column_key, column_total = finished(a, b, c, p, NEGATIVES)
        of_rows = parts + programs.to(tl.int64) * 3 * n_rows + positives
        a, b, c = load_statistics(of_rows, n_rows, inside, NEGATIVES)
        of_row, row_key, row_total = finished(a, b, c, p, NEGATIVES)
        tl.store(losses + positives, of_row + of_column, mask=inside)
        tl.store(statistics + positives, row_key, mask=inside)
        tl.store(statistics + n_rows + positives, row_total, mask=inside)
        tl.store(statistics + 2 * n_rows + positives, column_key, mask=inside)
        tl.store(statistics + 3 * n_rows + positives, column_total, mask=inside)
        summed += tl.sum(tl.where(inside, of_row + of_column, 0.0))
    if tl.num_programs(0) == 1:
        tl.store(loss, summed * share)


def loss(
    scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    margin: float, negatives: int, p: float, reduction: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`crossret::triplet_loss_triton`: the loss, float32, and statistics (4, n_rows) that its gradient is made of."""
    n_rows, n_columns = scores.shape
    losses = torch.empty(n_rows, dtype=torch.float32, device=scores.device)
    made = losses.new_empty(())
    statistics = losses.new_empty((4, n_rows))
    if n_rows:
        scores = scores if scores.stride(1) == 1 else scores.contiguous()
        blocks = -(-n_rows // ROWS.value)
        per_program = -(-blocks // TripletLoss.PROGRAMS)
        programs = -(-blocks // per_program)
        parts = losses.new_empty((programs + 1, 3, n_rows))  # the last of the rows
        kind, key = kind_of(image_ids, caption_ids, negatives, p), key_of(scores)
        launch(
            hinge_statistics, (programs, 1, 1),
            (scores, scores if image_ids is None else image_ids, scores if caption_ids is None else caption_ids,
             parts, n_rows, n_columns, scores.stride(0), offset, margin, p - 1, programs, per_program), kind, key, 8,
        )  # fmt: skip
        alone = reduction != 2 and n_rows <= TripletLoss.SUMMED
        launch(
            losses_of_statistics, (1 if alone else -(-n_rows // POSITIVES.value), 1, 1),
            (losses, made, statistics, parts, n_rows, programs, p - 1, p, 1 / n_rows if reduction == 1 else 1.0), kind,
            key,
        )  # fmt: skip
        if alone:
            return made, statistics
    if reduction == 2:
        return losses, statistics
    return (losses.mean() if reduction == 1 and n_rows else losses.sum()), statistics
