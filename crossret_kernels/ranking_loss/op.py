"""`triplet_loss`: ranking losses over a score matrix, in PyTorch operations on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossret_kernels.backends import BACKENDS, UnsupportedByBackend
from crossret_kernels.checks import check_number, choose
from crossret_kernels.inputs import as_integers, check_floating, check_has_values

NEGATIVES = ("hardest", "sum", "softmax")
REDUCTIONS = ("sum", "mean", "none")
Ids = Tensor | Sequence[int] | None


def triplet_loss(
    scores: Tensor,
    *,
    margin: float = 0.2,
    negatives: str = "hardest",
    p: float = 8.0,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    reduction: str = "sum",
    backend: str | None = None,
) -> Tensor:
    """Triplet ranking loss of matching images and captions over their scores, in both directions.

    Args:
        scores: (n, n) float32, float64, bfloat16 or float16, dense; image i and caption i match.
        margin: α of the hinge [α − S(positive) + S(negative)]₊.
        negatives: "hardest": the hardest negative of each row and column (SCAN Eq. 12); "sum": all of them
            (SCAN Eq. 11); "softmax": the ℓ_p norm of the hinges (HAN Eq. 4 as papers.md reads it), which runs from
            the sum at p = 1 to the hardest as p grows.
        p: order of that norm, at least 1; used by "softmax" alone.
        image_ids: (n,) integers, the image of each pair; default: all differ.
        caption_ids: (n,) integers, the caption of each pair; default: all differ. Image i and caption j are negatives
            of each other only where neither the images nor the captions of pairs i and j are the same, so that two
            captions of one image never are.
        reduction: "sum" over rows and columns (SCAN), "mean" over the n positives, or "none": (n,), of each
            positive the loss of its row plus that of its column.
        backend: None or "torch".

    Returns:
        A scalar, or (n,) for "none", in the scores' dtype. Where no negative exists the loss is zero, with zero
        gradient; where hinges are zero so are their gradients, never NaN.

    Raises:
        ValueError: shapes, names or numbers out of range, tensors on the meta device. TypeError: scores that are no
            dense floating-point tensor, ids that are no integers, numbers that are none.
        UnsupportedByBackend: any other backend.
    """
    margin, p = _check(scores, margin, negatives, p, reduction, backend)
    n = scores.size(0)
    match = torch.eye(n, dtype=torch.bool, device=scores.device)
    for ids, name in ((image_ids, "image_ids"), (caption_ids, "caption_ids")):
        if ids is not None:
            same = _as_ids(ids, name, n, scores.device)
            match = match | (same[:, None] == same[None, :])
    positives = scores.diagonal()
    per_image = _pool((margin - positives[:, None] + scores).masked_fill(match, 0).relu(), negatives, p)
    per_caption = _pool((margin - positives[None, :] + scores).masked_fill(match, 0).relu().T, negatives, p)
    losses = per_image + per_caption
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(n, 1)


def _pool(hinges: Tensor, negatives: str, p: float) -> Tensor:
    """Hinges (n, n) ≥ 0, one row a positive, to one loss each; matching entries are zero."""
    if negatives == "sum" or hinges.size(1) == 0:  # of no hinges there is no maximum
        return hinges.sum(1)
    hardest = hinges.max(1).values
    if negatives == "hardest":
        return hardest
    # Scaled by the maximum, so that no power overflows, and underflows only beside a 1. The scale cancels: a constant.
    scale = hardest.detach()
    ratios = hinges / scale.where(scale != 0, 1)[:, None]
    return torch.linalg.vector_norm(ratios, p, dim=1) * scale


def _check(
    scores: Tensor, margin: float, negatives: str, p: float, reduction: str, backend: str | None
) -> tuple[float, float]:
    """The margin and p as floats."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a floating-point tensor, not {type(scores).__name__}")
    check_floating(scores, "scores")
    check_has_values(scores, "scores")
    if scores.dim() != 2 or scores.size(0) != scores.size(1):
        raise ValueError(f"scores must be square, one matching caption an image, got {tuple(scores.shape)}")
    choose("negatives", negatives, NEGATIVES)
    choose("reduction", reduction, REDUCTIONS)
    margin, p = check_number("margin", margin), check_number("p", p)
    if p < 1:
        raise ValueError(f"p must be at least 1, not {p!r}")
    if backend not in (None, *BACKENDS):
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend not in (None, "torch"):
        raise UnsupportedByBackend(f"backend {backend!r} cannot serve triplet_loss: it is built in PyTorch operations")
    return margin, p


def _as_ids(ids: Tensor | Sequence[int], name: str, n: int, device: torch.device) -> Tensor:
    tensor = as_integers(ids, name)
    if tensor.shape != (n,):
        raise ValueError(f"{name} must hold one id for each of {n} rows, got shape {tuple(tensor.shape)}")
    return tensor.to(device)
