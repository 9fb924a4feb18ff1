"""Backend "torch" of the contrastive losses: PyTorch operations on any device, twice differentiable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from crossret_kernels.contrastive_loss.options import InfoNceOptions, Number, SigmoidOptions, as_number
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import Ids, Positives, as_loss, in_float32, reduced


def infonce_loss_torch(scores: Tensor, scale: Tensor, positives: Positives, options: InfoNceOptions) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype; computed in float32 or wider."""
    columns = slice(positives.offset, positives.offset + len(scores))
    logits, (positive, valid) = with_targets(scores, scale, positives.matches(scores))
    row_losses = cross_entropies(logits, positive, valid, options.label_smoothing)
    logits, positive, valid = (part[:, columns].T for part in (logits, positive, valid))
    column_losses = cross_entropies(logits, positive, valid, options.label_smoothing)
    return as_loss(reduced((row_losses + column_losses) / 2, options.reduction), scores)


def with_targets(scores: Tensor, scale: Tensor, match: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Logits of the scores, in float32 or wider, and masks of positives and of all pairs that are not left out.

    A pair of score −∞ is left out: its logit is far below all others, of probability 0.
    """
    left_out = scores.isneginf()
    logits = scale * in_float32(scores).masked_fill(left_out, 0)
    return logits.masked_fill(left_out, torch.finfo(logits.dtype).min / 2), (match & ~left_out, ~left_out)


def cross_entropies(logits: Tensor, positive: Tensor, valid: Tensor, smoothing: float) -> Tensor:
    """Cross entropy (n,) of every row (n, m) with its targets; 0 of a row without a positive."""
    count, pairs = (mask.sum(1, keepdim=True).to(logits.dtype) for mask in (positive, valid))
    targets = positive * ((1 - smoothing) / count.clamp(min=1))
    if smoothing:
        targets += valid * (smoothing / pairs.clamp(min=1)).where(count > 0, 0)
    return cross_entropy(logits, targets, reduction="none").where(count[:, 0] > 0, 0)


def sigmoid_loss_torch(
    scores: Tensor, scale: Tensor, bias: Tensor, positives: Positives, options: SigmoidOptions
) -> Tensor:
    """A scalar, or (n_rows,), in the scores' dtype."""
    left_out = scores.isneginf()
    logits = scale * in_float32(scores).masked_fill(left_out, 0) + bias
    signed_logits = logits.where(positives.matches(scores), -logits)
    losses = -logsigmoid(signed_logits).masked_fill(left_out, 0)
    return as_loss(reduced(losses.sum(1), options.reduction), scores)


def infonce_row_loss(
    scores: Tensor,
    scale: Number,
    *,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    label_smoothing: float = 0.0,
    positive_offset: int = 0,
) -> Tensor:
    """The cross entropy of every row's softmax: ``infonce_loss`` without the columns, and not halved.

    The loss of a matrix whose rows are spread over processes is half the sum of this over all rows and columns. Results
    are those of ``triplet_row_loss``. Arguments and errors are those of ``infonce_loss``.
    """
    options = checked(InfoNceOptions, None, {"label_smoothing": label_smoothing, "reduction": "none"})
    match = Positives.of(scores, image_ids, caption_ids, positive_offset).matches(scores)
    logits, targets = with_targets(scores, as_number(scale, "scale", scores), match)
    return cross_entropies(logits, *targets, options.label_smoothing)
