"""`infonce_loss` and `sigmoid_loss`: contrastive losses over a score matrix; their schemas and dispatch to backends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.backends import select_backend
from crossret_kernels.contrastive_loss.options import KEPT, InfoNceOptions, Number, SigmoidOptions, as_number
from crossret_kernels.contrastive_loss.reference import infonce_loss_reference, sigmoid_loss_reference
from crossret_kernels.contrastive_loss.torch import infonce_loss_torch, sigmoid_loss_torch
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import REDUCTIONS, Ids, as_ids, as_loss, check_shape, why_no_kernels
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


INFONCE_KERNELS = {
    "triton": define(
        "infonce_loss_triton", _INFONCE, _INFONCE_OPTIONS, _loss_with_statistics, made="(Tensor, Tensor)",
        kernels=("contrastive_loss.triton.softmax:loss", "contrastive_loss.triton.softmax:gradient"),
    ),
}  # fmt: skip
SIGMOID_KERNELS = {
    "triton": define(
        "sigmoid_loss_triton", _SIGMOID, _SIGMOID_OPTIONS, _loss_like,
        kernels=("contrastive_loss.triton.sigmoid:loss", "contrastive_loss.triton.sigmoid:gradient"),
    ),
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
        scores: (n_rows, n_columns) float32, float64, bfloat16 or float16, dense; image i and caption
            i + positive_offset match. (n, n) in one process. A pair of score −∞ is left out: it has probability 0 and
            no target, and P and n do not count it. A row or column without a positive has no loss.
        scale: inverse temperature: a finite number, or a floating-point scalar, which gets its gradient.
        image_ids: (n_columns,) integers, the image of each column's pair; default: all differ.
        caption_ids: (n_columns,) integers, the caption of each column's pair; default: all differ. Image i and caption
            j are positives where the images or the captions of their pairs are the same.
        label_smoothing: ε, 0 … 1.
        positive_offset: the column of the first row's positive, 0 … n_columns − n_rows.
        reduction: "mean" over the n_rows positives (CLIP), "sum", or "none": (n_rows,). The loss of a positive is half
            of that of its row, over all columns, and of its column, over the rows that are here: columns whose
            positives are elsewhere have none.
        backend: "triton", "torch", "reference"; None takes what CROSSRET_BACKEND prefers where it serves the call, else
            the fastest that does. "torch" makes several matrices of logits and alone is differentiable twice; "triton"
            keeps nothing as large as the scores but their gradient, and a copy of scores whose rows are not contiguous.
            Under torch.func's transforms None takes "torch".

    Returns:
        A scalar, or (n_rows,) for "none", in the scores' dtype; float32 for half-precision scores under CUDA's
        autocast. Half-precision scores are computed with in float32. NaN makes its row's and its column's losses and
        gradients NaN, and no others.

    Raises:
        ValueError: shapes, names or numbers out of range, tensors on the meta device. TypeError: scores that are no
            dense floating-point tensor, ids that are no integers, numbers that are none.
        UnsupportedByBackend: the backend of this name cannot serve the call.
    """
    options = checked(InfoNceOptions, None, {"label_smoothing": label_smoothing, "reduction": reduction})
    check_shape(scores, positive_offset)
    ids = as_ids(image_ids, "image_ids", scores), as_ids(caption_ids, "caption_ids", scores)
    inputs = (scores, as_number(scale, "scale", scores), *ids)
    chosen = select_backend(backend, scores.device, scores.dtype, why_no_kernels(scores), INFONCE_KERNELS)
    if chosen in INFONCE_KERNELS:
        return as_loss(INFONCE_KERNELS[chosen](*inputs, *options.codes, positive_offset), scores)
    loss = infonce_loss_torch if chosen == "torch" else infonce_loss_reference
    return loss(*inputs, options, positive_offset)


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
    check_shape(scores, positive_offset)
    ids = as_ids(image_ids, "image_ids", scores), as_ids(caption_ids, "caption_ids", scores)
    inputs = (scores, as_number(scale, "scale", scores), as_number(bias, "bias", scores), *ids)
    chosen = select_backend(backend, scores.device, scores.dtype, why_no_kernels(scores), SIGMOID_KERNELS)
    if chosen in SIGMOID_KERNELS:
        return as_loss(SIGMOID_KERNELS[chosen](*inputs, *options.codes, positive_offset), scores)
    loss = sigmoid_loss_torch if chosen == "torch" else sigmoid_loss_reference
    return loss(*inputs, options, positive_offset)
