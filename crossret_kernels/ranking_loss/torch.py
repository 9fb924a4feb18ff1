"""Backend "torch" of the ranking losses: PyTorch operations on any device, twice differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import Ids, Positives, as_loss, in_float32, reduced
from crossret_kernels.ranking_loss.options import LossOptions


def triplet_loss_torch(scores: Tensor, positives: Positives, options: LossOptions) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype; computed in float32 or wider."""
    exact, match = in_float32(scores), positives.matches(scores)
    square = slice(positives.offset, positives.offset + len(scores))
    positive = exact.diagonal(positives.offset)[: len(scores)]
    losses = pooled(exact, match, positive, options) + pooled(exact[:, square].T, match[:, square].T, positive, options)
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
    # The gradient is divided by the norm's power p − 1, which loses p roundings.
    wide = hinges.dtype if options.p <= 64 else torch.float64
    scale = hinges.detach().amax(1).to(wide)
    ratios = hinges / scale.where(scale != 0, 1)[:, None]
    return (torch.linalg.vector_norm(ratios, options.p, dim=1) * scale).to(hinges.dtype)


def triplet_row_loss(
    scores: Tensor,
    *,
    margin: float = 0.2,
    negatives: str = "hardest",
    p: float = 8.0,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    positive_offset: int = 0,
) -> Tensor:
    """The loss of every row's positive among the negatives of its row: ``triplet_loss`` without the columns.

    Of a matrix whose rows are spread over processes, the loss is the sum of this over all rows and, on the transpose,
    over all columns: each process takes its rows, and the columns that others have sent it.

    Args:
        scores: (n_rows, n_columns) floating point; row i and column i + positive_offset match.
        others: as in ``crossret_kernels.triplet_loss``.

    Returns:
        (n_rows,), in the scores' dtype, float32 for half precision. It is differentiable twice.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.triplet_loss``.
    """
    options = checked(LossOptions, None, {"margin": margin, "negatives": negatives, "p": p, "reduction": "none"})
    match = Positives.of(scores, image_ids, caption_ids, positive_offset).matches(scores)
    exact = in_float32(scores)
    return pooled(exact, match, exact.diagonal(positive_offset)[: len(exact)], options)
