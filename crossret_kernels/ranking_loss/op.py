"""`triplet_loss`: ranking losses over a score matrix; its schema and dispatch to backends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import REDUCTIONS, Ids, Positives, lose
from crossret_kernels.operations import Operand, define
from crossret_kernels.ranking_loss.options import LossOptions
from crossret_kernels.ranking_loss.reference import triplet_loss_reference
from crossret_kernels.ranking_loss.torch import triplet_loss_torch

_OPERANDS = (Operand("scores", "Tensor", True), Operand("image_ids"), Operand("caption_ids"))
_OPTIONS = f"{LossOptions.schema}, SymInt positive_offset"
# The loss and, for its gradient, statistics of hinges (4, n_rows), float32.
_RESULTS = "(Tensor, Tensor)"


def _loss_like(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    rows = scores.size(0)
    shape = (rows,) if arguments[-2] == REDUCTIONS.index("none") else ()
    return scores.new_empty(shape, dtype=torch.float32), scores.new_empty((4, rows), dtype=torch.float32)


_TRITON = "ranking_loss.triton.losses:loss", "ranking_loss.triton.losses:gradient"
LOSSES = {
    "triton": define("triplet_loss_triton", _OPERANDS, _OPTIONS, _loss_like, made=_RESULTS, kernels=_TRITON),
    "torch": triplet_loss_torch,
    "reference": triplet_loss_reference,
}


def triplet_loss(
    scores: Tensor,
    *,
    margin: float = 0.2,
    negatives: str = "hardest",
    p: float = 8.0,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    positive_offset: int = 0,
    reduction: str = "sum",
    backend: str | None = None,
) -> Tensor:
    """Triplet ranking loss of matching images and captions over their scores, in both directions.

    Args:
        scores: (n_rows, n_columns) float32, float64, bfloat16 or float16, dense; image i and caption
            i + positive_offset match. (n, n) in one process; where several train together, the images of this one
            against the captions of all.
        margin: α of the hinge [α − S(positive) + S(negative)]₊.
        negatives: "hardest": the hardest negative of each row and column (SCAN Eq. 12), the first of equals; "sum": all
            of them (SCAN Eq. 11); "softmax": the ℓ_p norm of the hinges, (Σ hinge^p)^(1/p) (HAN Eq. 4, of which only
            this reading is the sum at p = 1 and tends to the hardest as p grows).
        p: order of that norm, at least 1; used by "softmax" alone.
        image_ids: (n_columns,) integers, the image of each column's pair; default: all differ.
        caption_ids: (n_columns,) integers, the caption of each column's pair; default: all differ. Image i and caption
            j are negatives of each other only where neither the images nor the captions of their pairs are the same,
            so that two captions of one image never are.
        positive_offset: the column of the first row's positive, 0 … n_columns − n_rows.
        reduction: "sum" over rows and columns (SCAN), "mean" over the n_rows positives, or "none": (n_rows,). The loss
            of a positive is that of its row, over all columns, plus that of its column, over the rows that are here:
            columns whose positives are elsewhere have none.
        backend: "triton", "torch", "reference"; None takes what CROSSRET_BACKEND prefers where it serves the call, else
            the fastest that does. "torch" makes several matrices of the scores' size and alone is differentiable twice;
            "triton" keeps nothing as large as the scores but their gradient, and a copy of scores whose rows are not
            contiguous. Under torch.func's transforms None takes "torch".

    Returns:
        A scalar, or (n_rows,) for "none", in the scores' dtype; float32 for half-precision scores under CUDA's
        autocast. Half-precision scores are computed with in float32. Where no negative exists the loss is zero, with
        zero gradient; where hinges are zero so are their gradients, never NaN. NaN among the hinges of a row or column
        makes its loss NaN, and by "softmax", for p above 1, the gradients of its hinges above zero, and no others'.

    Raises:
        ValueError: shapes, names or numbers out of range, tensors on the meta device. TypeError: scores that are no
            dense floating-point tensor, ids that are no integers, numbers that are none.
        UnsupportedByBackend: the backend of this name cannot serve the call.
    """
    options = checked(LossOptions, None, {"margin": margin, "negatives": negatives, "p": p, "reduction": reduction})
    return lose(LOSSES, backend, scores, Positives.of(scores, image_ids, caption_ids, positive_offset), options)
