"""Backend "reference" of the ranking losses: the papers' formulas, all hinges materialised, float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.score_matrix import Positives, in_float32, reduced
from crossret_kernels.ranking_loss.options import LossOptions


def triplet_loss_reference(scores: Tensor, positives: Positives, options: LossOptions) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype."""
    exact = in_float32(scores)
    *pair_ids, offset = positives
    n = len(exact)
    pairs = torch.arange(n, device=exact.device)
    columns = torch.arange(exact.size(1), device=exact.device)
    negative = columns != pairs[:, None] + offset
    for ids in pair_ids:
        if ids is not None:
            negative &= ids != ids[pairs + offset][:, None]
    positive = exact[pairs, pairs + offset]
    row_hinges = (options.margin - positive)[:, None] + exact
    column_hinges = (options.margin - positive)[:, None] + exact[:, offset : offset + n].mT
    column_negative = negative[:, offset : offset + n].mT
    losses = _pool(row_hinges, negative, options) + _pool(column_hinges, column_negative, options)
    return reduced(losses, options.reduction).to(scores.dtype)


def _pool(hinges: Tensor, negative: Tensor, options: LossOptions) -> Tensor:
    """SCAN Eq. 11 or 12 or HAN Eq. 4 of hinges that are not clamped yet, one row a positive."""
    active = negative & ~(hinges <= 0)  # NaN counts
    hinges = hinges.where(active, 0)
    if options.negatives == "sum":
        return hinges.sum(1)
    if options.negatives == "hardest":
        return hinges.max(1).values if hinges.size(1) else hinges.sum(1)
    # ‖h‖ₚ = exp(ln Σ exp(p ln h) / p), over the rows that have a hinge
    has_active = active.any(1)
    logs = hinges.where(active, 1).log().masked_fill(~active & has_active[:, None], -torch.inf)
    if not hinges.size(1):
        return hinges.sum(1)
    greatest = logs.detach().amax(1, keepdim=True)  # p times it would lose what it differs from others by
    return ((options.p * (logs - greatest)).logsumexp(1) / options.p + greatest[:, 0]).exp().where(has_active, 0)
