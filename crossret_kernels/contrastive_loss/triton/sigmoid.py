"""The sigmoid loss in Triton (SigLIP, Algorithm 1): one pass over the scores, one more for their gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.contrastive_loss.triton.logits import LOWEST, LogitKind, tile_logits, total
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_scores import COLUMNS, ROWS, ScoreMatrix, gradient_of, reduced, store_gradient
from crossret_kernels.gpu.triton_tiles import logistic


@triton.jit
def softplus(x):
    """log (1 + eˣ), by log (1 + u) = 2 artanh (u / (2 + u)), which loses no digit of a small u."""
    u = tl.exp(-tl.abs(x))
    w = u / (2.0 + u)
    square = w * w
    y = square * (1.0 / 13) + 1.0 / 11
    y = y * square + 1.0 / 9
    y = y * square + 1.0 / 7
    y = y * square + 1.0 / 5
    y = y * square + 1.0 / 3
    return 2.0 * w * (y * square + 1.0) + tl.where(x < 0.0, 0.0, x)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset"],
    do_not_specialize_on_alignment=["scores", "scale", "bias", "image_ids", "caption_ids"],
)
def sigmoid_losses(
    scores, scale, bias, image_ids, caption_ids, losses, n_rows, n_columns, stride, offset,
    KIND: tl.constexpr,
):  # fmt: skip
    """A block of rows, all columns of them."""
    row = tl.program_id(0) * ROWS
    by, above = tl.load(scale), tl.load(bias)
    sums = tl.full((ROWS,), 0, tl.float32)
    for column in range(0, n_columns, COLUMNS):
        _rows, _columns, _s, logits, positive = tile_logits(
            scores, by, above, image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset,
            KIND,
        )  # fmt: skip
        pair_losses = softplus(tl.where(positive, -logits, logits))
        sums += tl.sum(tl.where(logits < LOWEST, 0.0, pair_losses), 1)
    rows = row + tl.arange(0, ROWS)
    tl.store(losses + rows, sums, mask=rows < n_rows)


def loss(
    scores: Tensor, scale: Tensor, bias: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None,
    reduction: int, offset: int,
) -> Tensor:  # fmt: skip
    """`crossret::sigmoid_loss_triton`: the loss, float32."""
    n_rows = scores.shape[0]
    losses = torch.empty(n_rows, dtype=torch.float32, device=scores.device)
    if n_rows:
        matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
        launch(
            sigmoid_losses, (matrix.row_blocks, 1, 1), (matrix.scores, scale, bias, *matrix.ids, losses, *matrix.sizes),
            LogitKind(*matrix.has_ids, False), matrix.key, 8,
        )  # fmt: skip
    return reduced(losses, reduction)


@triton.jit(
    do_not_specialize=["n_rows", "n_columns", "stride", "offset", "grad_stride"],
    do_not_specialize_on_alignment=["grad_loss", "scores", "scale", "bias", "image_ids", "caption_ids"],
)
def sigmoid_gradients(
    grad_loss, scores, image_ids, caption_ids, out, n_rows, n_columns, stride, offset, grad_stride, share, scale, bias,
    sums, KIND: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient, and its parts of the scale's and the bias's; `share` of the loss's is a row's."""
    across = tl.cdiv(n_columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS
    column = tl.program_id(0) % across * COLUMNS
    by = tl.load(scale)
    rows, columns, s, logits, positive = tile_logits(
        scores, by, tl.load(bias), image_ids, caption_ids, row, column, n_rows, n_columns, stride, offset,
        KIND,
    )  # fmt: skip
    grads = tl.load(grad_loss + rows.to(tl.int64) * grad_stride, mask=rows < n_rows, other=0.0) * share
    slopes = grads[:, None] * logistic(tl.where(positive, -logits, logits))
    gradient = tl.where(logits < LOWEST, 0.0, tl.where(positive, -slopes, slopes))
    tl.store(sums + tl.program_id(0), total(s * gradient))
    tl.store(sums + tl.num_programs(0) + tl.program_id(0), total(gradient))
    store_gradient(out, n_rows, n_columns, rows, columns, gradient * by)


def gradient(
    grad_loss: Tensor, scores: Tensor, scale: Tensor, bias: Tensor, image_ids: Tensor | None,
    caption_ids: Tensor | None, reduction: int, offset: int, needs_scores: bool, needs_scale: bool, needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`crossret::sigmoid_loss_triton_backward`: the scores' gradient, in their dtype, the scale's and the bias's."""
    out, sums = torch.empty_like(scores), torch.zeros((2, 1), dtype=torch.float32, device=scores.device)
    if scores.size(0):
        matrix = ScoreMatrix.of(scores, image_ids, caption_ids, offset)
        sums, kind = sums.new_empty((2, matrix.tiles)), LogitKind(*matrix.has_ids, False)
        out = gradient_of(sigmoid_gradients, kind, matrix, grad_loss, reduction, scale, bias, sums)
    score_grad = out if needs_scores else out.new_empty(0)
    numbers = (sums[k].sum() if needed else sums.new_empty(0) for k, needed in enumerate((needs_scale, needs_bias)))
    return (score_grad, *numbers)  # type: ignore[return-value]
