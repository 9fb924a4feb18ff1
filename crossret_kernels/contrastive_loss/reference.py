"""Backend "reference" of the contrastive losses: the papers' formulas, all materialised, float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.contrastive_loss.options import InfoNceOptions, SigmoidOptions
from crossret_kernels.inputs.score_matrix import Positives, in_float32, reduced


def infonce_loss_reference(scores: Tensor, scale: Tensor, positives: Positives, options: InfoNceOptions) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype: CLIP, Fig. 3, with targets spread over all positives."""
    own = slice(positives.offset, positives.offset + len(scores))
    here = ~scores.isneginf()
    logits = (scale * in_float32(scores).where(here, 0)).where(here, -torch.inf)
    positive = positives.matches(scores) & here
    of_rows = _cross_entropies(logits, positive, options.label_smoothing)
    of_columns = _cross_entropies(logits[:, own].T, positive[:, own].T, options.label_smoothing)
    return reduced((of_rows + of_columns) / 2, options.reduction).to(scores.dtype)


def _cross_entropies(logits: Tensor, positive: Tensor, smoothing: float) -> Tensor:
    """Losses of all rows that have a positive."""
    here, some = ~logits.isneginf(), positive.any(1, keepdim=True)
    of_positives, of_all = (
        pairs.to(logits.dtype) / pairs.sum(1, keepdim=True).clamp(min=1) for pairs in (positive, here)
    )
    targets = (1 - smoothing) * of_positives + smoothing * of_all
    logs = logits.where(some, 0).log_softmax(1)
    return -(targets * logs).where(here & some, 0).sum(1)


def sigmoid_loss_reference(
    scores: Tensor, scale: Tensor, bias: Tensor, positives: Positives, options: SigmoidOptions
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype: SigLIP, Algorithm 1."""
    here = ~scores.isneginf()
    logits = scale * in_float32(scores).where(here, 0) + bias
    signs = 2 * positives.matches(scores).to(logits.dtype) - 1
    losses = torch.logaddexp(-signs * logits, torch.zeros_like(logits)).where(here, 0)
    return reduced(losses.sum(1), options.reduction).to(scores.dtype)
