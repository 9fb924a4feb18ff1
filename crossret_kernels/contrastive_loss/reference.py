"""Backend "reference" of the contrastive losses: the papers' formulas, all materialised, float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.contrastive_loss.options import InfoNceOptions, SigmoidOptions
from crossret_kernels.inputs.score_matrix import Positives, in_float32, reduced


def infonce_loss_reference(scores: Tensor, scale: Tensor, positives: Positives, options: InfoNceOptions) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype: CLIP, Fig. 3, with targets spread over all positives."""
    columns = slice(positives.offset, positives.offset + len(scores))
    valid = ~scores.isneginf()
    logits = (scale * in_float32(scores).where(valid, 0)).where(valid, -torch.inf)
    positive = positives.matches(scores) & valid
    row_losses = _cross_entropies(logits, positive, options.label_smoothing)
    column_losses = _cross_entropies(logits[:, columns].T, positive[:, columns].T, options.label_smoothing)
    return reduced((row_losses + column_losses) / 2, options.reduction).to(scores.dtype)


def _cross_entropies(logits: Tensor, positive: Tensor, smoothing: float) -> Tensor:
    """Losses of all rows that have a positive."""
    valid, has_positive = ~logits.isneginf(), positive.any(1, keepdim=True)
    positive_targets, pair_targets = (
        pairs.to(logits.dtype) / pairs.sum(1, keepdim=True).clamp(min=1) for pairs in (positive, valid)
    )
    targets = (1 - smoothing) * positive_targets + smoothing * pair_targets
    logs = logits.where(has_positive, 0).log_softmax(1)
    return -(targets * logs).where(valid & has_positive, 0).sum(1)


def sigmoid_loss_reference(
    scores: Tensor, scale: Tensor, bias: Tensor, positives: Positives, options: SigmoidOptions
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype: SigLIP, Algorithm 1."""
    valid = ~scores.isneginf()
    logits = scale * in_float32(scores).where(valid, 0) + bias
    signs = 2 * positives.matches(scores).to(logits.dtype) - 1
    losses = torch.logaddexp(-signs * logits, torch.zeros_like(logits)).where(valid, 0)
    return reduced(losses.sum(1), options.reduction).to(scores.dtype)
