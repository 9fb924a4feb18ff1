"""Backend "torch" of the ranking losses: PyTorch operations on any device, twice differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.score_matrix import matches, reduced
from crossret_kernels.ranking_loss.options import LossOptions


def triplet_loss_torch(
    scores: Tensor, image_ids: Tensor | None, caption_ids: Tensor | None, options: LossOptions, offset: int
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype."""
    n_rows = len(scores)
    own = slice(offset, offset + n_rows)
    match = matches(scores, image_ids, caption_ids, offset)
    positives = scores.diagonal(offset)[:n_rows]
    of_rows = options.margin - positives[:, None] + scores
    of_columns = options.margin - positives[None, :] + scores[:, own]
    losses = pooled(of_rows.masked_fill(match, 0).relu(), options) + pooled(
        of_columns.masked_fill(match[:, own], 0).relu().T, options
    )
    return reduced(losses, options.reduction)


def pooled(hinges: Tensor, options: LossOptions) -> Tensor:
    """Hinges ≥ 0, one row a positive, to one loss each; matching entries are zero."""
    if options.negatives == "sum" or hinges.size(1) == 0:  # of no hinges there is no maximum
        return hinges.sum(1)
    hardest = hinges.max(1).values
    if options.negatives == "hardest":
        return hardest
    # Scaled by the maximum, so that no power overflows, and underflows only beside a 1. The scale cancels: a constant.
    scale = hardest.detach()
    ratios = hinges / scale.where(scale != 0, 1)[:, None]
    return torch.linalg.vector_norm(ratios, options.p, dim=1) * scale
