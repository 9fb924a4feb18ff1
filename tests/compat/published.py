"""SCAN's published scores and loss, pair by pair from the formulas: the oracle of crossret.compat.scan."""

from __future__ import annotations

from argparse import Namespace

import torch
from torch import Tensor

from crossret_kernels.cross_attention.options import NORM_MODES

EPS = 1e-8
NORMS = [name for name in NORM_MODES if name != "minmax"]
AGGREGATIONS = ["LogSumExp", "Max", "Sum", "Mean"]
DIRECTIONS = ["t2i", "i2t"]


def options(direction: str, norm: str = "clipped_l2norm", aggregation: str = "LogSumExp") -> Namespace:
    """As train.py of the published code has them."""
    return Namespace(
        cross_attn=direction, raw_feature_norm=norm, agg_func=aggregation, lambda_softmax=4.0, lambda_lse=6.0
    )


def batch(n_image: int = 3, lengths: tuple[int, ...] = (4, 1, 6), dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of three regions and padded captions, float64; what lies behind a caption's length is NaN."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n_image, 3, dim, generator=generator, dtype=torch.float64)
    captions = torch.randn(len(lengths), max(lengths), dim, generator=generator, dtype=torch.float64)
    for caption, length in zip(captions, lengths, strict=True):
        caption[length:] = torch.nan
    return images, captions


def normalized(s: Tensor, norm: str) -> Tensor:
    """Similarities (contexts, queries), each context's made comparable over the queries."""
    if norm.startswith("clipped"):
        s = torch.where(s >= 0, s, 0.1 * s)
    if norm == "softmax":
        return s.exp() / s.exp().sum(1, keepdim=True)
    if norm.endswith("l2norm"):
        return s / (s.pow(2).sum(1, keepdim=True).sqrt() + EPS)
    if norm.endswith("l1norm"):
        return s / (s.abs().sum(1, keepdim=True) + EPS)
    return s


def attend(queries: Tensor, contexts: Tensor, norm: str, smooth: float) -> tuple[Tensor, Tensor]:
    """Of one item: attended vectors (queries, D) and weights (contexts, queries)."""
    heat = (smooth * normalized(contexts @ queries.T, norm)).exp()
    weights = heat / heat.sum(0, keepdim=True)
    return weights.T @ contexts, weights


def score(image: Tensor, caption: Tensor, opt: Namespace) -> Tensor:
    """Of one image and one caption without padding."""
    queries, contexts = (caption, image) if opt.cross_attn == "t2i" else (image, caption)
    attended, _ = attend(queries, contexts, opt.raw_feature_norm, opt.lambda_softmax)
    lengths = queries.pow(2).sum(1).sqrt() * attended.pow(2).sum(1).sqrt()
    cosines = (queries * attended).sum(1) / lengths.clamp(min=EPS)
    if opt.agg_func == "LogSumExp":
        return (opt.lambda_lse * cosines).exp().sum().log() / opt.lambda_lse
    return {"Max": cosines.max(), "Sum": cosines.sum(), "Mean": cosines.mean()}[opt.agg_func]


def scores(images: Tensor, captions: Tensor, lengths: tuple[int, ...], opt: Namespace) -> Tensor:
    """All of them, (n_image, n_caption)."""
    columns = [
        torch.stack([score(image, caption[:length], opt) for image in images])
        for caption, length in zip(captions, lengths, strict=True)
    ]
    return torch.stack(columns, 1)


def loss(matrix: Tensor, margin: float, max_violation: bool) -> Tensor:
    """Hinges of all pairs that do not match, against the row's positive and the column's."""
    total = matrix.new_zeros(())
    for hinges in (margin + matrix - matrix.diag()[:, None], (margin + matrix - matrix.diag()[None, :]).T):
        for item, row in enumerate(hinges):
            negatives = torch.cat([row[:item], row[item + 1 :]]).clamp(min=0)
            if len(negatives):
                total = total + (negatives.max() if max_violation else negatives.sum())
    return total
