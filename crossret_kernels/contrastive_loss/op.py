"""`infonce_loss` and `sigmoid_loss`: contrastive losses over a score matrix; their schemas and dispatch to backends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.contrastive_loss.options import KEPT, InfoNceOptions, Number, SigmoidOptions, as_number
from crossret_kernels.contrastive_loss.reference import infonce_loss_reference, sigmoid_loss_reference
from crossret_kernels.contrastive_loss.torch import infonce_loss_torch, sigmoid_loss_torch
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import REDUCTIONS, Ids, Positives, lose
from crossret_kernels.operations import Operand, define

_IDS = (Operand("image_ids"), Operand("caption_ids"))
_INFONCE = (Operand("scores", "Tensor", True), Operand("scale", "Tensor", True), *_IDS)
_SIGMOID = (*_INFONCE[:2], Operand("bias", "Tensor", True), *_IDS)
_INFONCE_OPTIONS = f"{InfoNceOptions.schema}, SymInt positive_offset"
_SIGMOID_OPTIONS = f"{SigmoidOptions.schema}, SymInt positive_offset"


def _loss_like(scores: Tensor, *arguments: Any) -> Tensor:
    shape = (scores.size(0),) if arguments[-2] == REDUCTIONS.index("none") else ()
    return scores.new_empty(shape, dtype=torch.float32)


def _loss_with_statistics(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _loss_like(scores, *arguments), scores.new_empty((KEPT, scores.size(0)), dtype=torch.float32)


INFONCE = {
    "triton": define(
        "infonce_loss_triton", _INFONCE, _INFONCE_OPTIONS, _loss_with_statistics, made="(Tensor, Tensor)",
        kernels=("contrastive_loss.triton.softmax:loss", "contrastive_loss.triton.softmax:gradient"),
    ),
    "torch": infonce_loss_torch,
    "reference": infonce_loss_reference,
}  # fmt: skip
SIGMOID = {
    "triton": define(
        "sigmoid_loss_triton", _SIGMOID, _SIGMOID_OPTIONS, _loss_like,
        kernels=("contrastive_loss.triton.sigmoid:loss", "contrastive_loss.triton.sigmoid:gradient"),
    ),
    "torch": sigmoid_loss_torch,
    "reference": sigmoid_loss_reference,
}  # fmt: skip


def infonce_loss(
    scores: Tensor,
    scale: Number,
    *,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    label_smoothing: float = 0.0,
    positive_offset: int = 0,
    reduction: str = "mean",
    backend: str | None = None,
) -> Tensor:
    """InfoNCE of matching images and captions over their scores: cross entropies of two softmaxes (CLIP, Fig. 3).

    That of row i is −Σ_j t_ij log softmax_j(scale · S_ij); a column's softmax runs over the rows. Of P positives each
    has the target 1 / P, and with label smoothing ε (1 − ε) / P, while every one of n pairs has ε / n besides.

    Args:
        scores: as in `triplet_loss`. A pair of score −∞ is left out: it has probability 0 and no target, and P and n
            do not count it. A row or column without a positive has no loss.
        scale: inverse temperature: a finite number, or a floating-point scalar, which gets its gradient.
        image_ids, caption_ids: as in `triplet_loss`. Image i and caption j are positives where the images or the
            captions of their pairs are the same.
        label_smoothing: ε, 0 … 1.
        positive_offset, backend: as in `triplet_loss`.
        reduction: "mean" over the n_rows positives (CLIP), "sum", or "none": (n_rows,). The loss of a positive is half
            of that of its row, over all columns, and of its column, over the rows that are here: columns whose
            positives are elsewhere have none.

    Returns:
        A scalar, or (n_rows,) for "none", of the dtype that `triplet_loss` has. NaN makes its row's and its column's
        losses and gradients NaN, and no others.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `triplet_loss`.
    """
    options = checked(InfoNceOptions, None, {"label_smoothing": label_smoothing, "reduction": reduction})
    positives = Positives.of(scores, image_ids, caption_ids, positive_offset)
    return lose(INFONCE, backend, scores, positives, options, as_number(scale, "scale", scores))


def sigmoid_loss(
    scores: Tensor,
    scale: Number,
    bias: Number,
    *,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    positive_offset: int = 0,
    reduction: str = "mean",
    backend: str | None = None,
) -> Tensor:
    """Sigmoid loss of images and captions over their scores (SigLIP, Zhai et al. 2023, Algorithm 1).

    Of every pair it is −log σ(z · (scale · S + bias)), where z is 1 of positives and −1 of all others.

    Args:
        scores: as in ``infonce_loss``. A pair of score −∞ is left out: it adds nothing, a positive neither.
        scale, bias: finite numbers, or floating-point scalars, which get their gradients.
        image_ids, caption_ids, positive_offset, backend: as in ``infonce_loss``.
        reduction: "mean": the sum over all pairs, divided by n_rows (SigLIP), "sum", or "none": (n_rows,), each the sum
            over its columns. Of a matrix whose rows are spread over processes each takes its own.

    Returns, Raises:
        As ``infonce_loss``. NaN makes the loss of its row NaN and, of gradients of scores, its own alone.
    """
    options = checked(SigmoidOptions, None, {"reduction": reduction})
    positives = Positives.of(scores, image_ids, caption_ids, positive_offset)
    numbers = as_number(scale, "scale", scores), as_number(bias, "bias", scores)
    return lose(SIGMOID, backend, scores, positives, options, *numbers)
