"""Backend "torch" of the contrastive losses: PyTorch operations on any device, twice differentiable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from crossret_kernels.contrastive_loss.options import InfoNceOptions, SigmoidOptions
from crossret_kernels.inputs.score_matrix import in_float32, matches, reduced


def infonce_loss_torch(
    scores: Tensor,
    scale: Tensor,
    image_ids: Tensor | None,
    caption_ids: Tensor | None,
    options: InfoNceOptions,
    offset: int,
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype."""
    own = slice(offset, offset + len(scores))
    match = matches(scores, image_ids, caption_ids, offset)
    of_rows, of_columns = (
        cross_entropies(in_float32(part), scale, of_part, options.label_smoothing)
        for part, of_part in ((scores, match), (scores[:, own].T, match[:, own].T))
    )
    return reduced((of_rows + of_columns) / 2, options.reduction).to(scores.dtype)


def cross_entropies(scores: Tensor, scale: Tensor, match: Tensor, smoothing: float) -> Tensor:
    """Of every row (n,) with the targets of its positives, over all pairs but those of score −∞; 0 without a positive.

    Logits are told from their greatest, so that none overflows and large ones lose no digit.
    """
    left_out = scores.isneginf()
    positive = match & ~left_out
    some = positive.any(1)
    logits = (scale * scores.masked_fill(left_out, 0)).masked_fill(~some[:, None], 0)
    skipped = left_out & some[:, None]
    greatest = logits.detach().masked_fill(skipped, -torch.inf).max(1).values if logits.size(1) else logits.sum(1)
    logits = logits - greatest[:, None]
    of_targets = (1 - smoothing) * _mean(logits, positive)
    if smoothing:
        of_targets = of_targets + smoothing * _mean(logits, ~left_out)
    return (logits.masked_fill(skipped, -torch.inf).logsumexp(1) - of_targets).where(some, 0)


def _mean(logits: Tensor, pairs: Tensor) -> Tensor:
    """Of some of every row; of none 0."""
    return logits.masked_fill(~pairs, 0).sum(1) / pairs.sum(1).clamp(min=1)


def sigmoid_loss_torch(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    image_ids: Tensor | None,
    caption_ids: Tensor | None,
    options: SigmoidOptions,
    offset: int,
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype."""
    left_out = scores.isneginf()
    logits = scale * in_float32(scores).masked_fill(left_out, 0) + bias
    signed = logits.where(matches(scores, image_ids, caption_ids, offset), -logits)
    losses = -logsigmoid(signed).masked_fill(left_out, 0)
    return reduced(losses.sum(1), options.reduction).to(scores.dtype)
