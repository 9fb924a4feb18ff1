"""Backend "torch" of the ranking losses: PyTorch operations on any device, twice differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.score_matrix import as_loss, in_float32, matches, reduced
from crossret_kernels.ranking_loss.options import LossOptions


def triplet_loss_torch(
    scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None, options: LossOptions, offset: int
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype; computed in float32 or wider."""
    exact, n_rows = in_float32(scores), len(scores)
    own = slice(offset, offset + n_rows)
    match = matches(scores, image_ids, caption_ids, offset)
    positives = exact.diagonal(offset)[:n_rows]
    losses = pooled(exact, match, positives, options) + pooled(exact[:, own].T, match[:, own].T, positives, options)
    return as_loss(reduced(losses, options.reduction), scores)


def pooled(scores: Tensor, match: Tensor, positives: Tensor, options: LossOptions) -> Tensor:
    """One loss (n,) for each positive (n,) from its scores (n, m), of which those that ``match`` are no negatives."""
    if scores.size(1) == 0:  # there is no maximum
        return scores.sum(1)
    # A positive without negatives counts as 0, so that its NaN does not reach the loss.
    hinge = (options.margin - positives).masked_fill(match.all(1), 0)
    if options.negatives == "hardest":  # the greatest hinge is that of the greatest score
        return (hinge + scores.masked_fill(match, -torch.inf).max(1).values).relu()
    hinges = (hinge[:, None] + scores).masked_fill(match, 0).relu()
    if options.negatives == "sum":
        return hinges.sum(1)
    # Division by the greatest hinge: no power overflows, and underflows only beside a 1. It cancels: a constant.
    scale = hinges.detach().amax(1)
    ratios = hinges / scale.where(scale != 0, 1)[:, None]
    return torch.linalg.vector_norm(ratios, options.p, dim=1) * scale
