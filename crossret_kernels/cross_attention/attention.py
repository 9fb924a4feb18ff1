"""Stacked cross attention of padded items in PyTorch operations: what backends "torch" and "reference" share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.padded.arithmetic import pool, power_of_two, safe_divide, safe_sqrt, scaled, vector_length

EPS = 1e-8  # of the published code: added to norms after the square root, and the floor of the cosine's denominator
FOCAL_SLACK = 2.0**-14  # part of its mean by which a focal weight may be below it, as rounding puts equal ones
UNSHIFTED = 2.0**64  # λ₁ up to which λ₁ / norm is finite, and so are the logits
UNSHIFTED_HALF = 2.0**8  # likewise in float16, of all but the least norms


def attention_weights(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, options: ScanOptions) -> Tensor:
    """Weights p (…, C, Q) of every query, zero at contexts that are padding; arguments as `attention_logits`."""
    contexts = context_mask[..., :, None]
    counts = contexts.sum(-2, keepdim=True)
    if options.norm == "minmax":
        threshold = counts.to(similarities.dtype).reciprocal() if options.threshold is None else options.threshold
        p = _spread(similarities, contexts, threshold)
    else:
        p = torch.softmax(attention_logits(similarities, context_mask, query_mask, options), -2)
    if not options.focal:
        return p
    constant = p.detach().to(torch.promote_types(p.dtype, torch.float32))
    p = p.where(constant * counts > (1 - FOCAL_SLACK) * constant.sum(-2, keepdim=True), 0)
    return p / p.sum(-2, keepdim=True)


def _spread(s: Tensor, contexts: Tensor, threshold: Tensor | float) -> Tensor:
    """SPARC's weights n / Σ n, n = (s − min s) / (max s − min s) or 0 below the threshold; 1 / C where all s agree."""
    least = s.masked_fill(~contexts, torch.inf).amin(-2, keepdim=True)
    greatest = s.masked_fill(~contexts, -torch.inf).amax(-2, keepdim=True)
    scale = power_of_two(torch.maximum(least.abs(), greatest.abs()))
    least = least * scale
    width = greatest * scale - least
    n = safe_divide(s * scale - least, width)
    n = n.masked_fill((n < threshold) & (width != 0), 0).masked_fill(width == 0, 1).masked_fill(~contexts, 0)
    return n / n.sum(-2, keepdim=True)


def attention_logits(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, options: ScanOptions) -> Tensor:
    """λ₁·n of docs/kernels.md §1, steps 2–4 (SCAN Eq. 3), (…, C, Q), minus infinity at contexts that are padding.

    Less the largest of a query's where that could overflow: the softmax over contexts is the same. Similarities of
    padding must be zero. Masks are added, as infinities: that takes less time than filling, and none backwards.
    """
    x = F.leaky_relu(similarities, options.clip_slope) if options.clips else similarities
    limit = UNSHIFTED_HALF if similarities.dtype == torch.float16 else UNSHIFTED
    factor = options.inverse_temperature
    shifts = options.norm == "none" or abs(factor) > limit
    inner = 1.0 if shifts else factor
    if options.norm == "softmax":
        n = inner * torch.softmax(x + _outside(query_mask[..., None, :], -torch.inf, x), -1)
    elif options.norm == "none":
        n = x
    else:
        x, scale = scaled(x)
        norm = (
            x.abs().sum(-1, keepdim=True) if options.norm == "l1norm" else safe_sqrt(x.square().sum(-1, keepdim=True))
        )
        n = x * safe_divide(torch.full_like(norm, inner), norm.where(norm == 0, norm + EPS * scale))
    contexts = context_mask[..., :, None]
    if not shifts:
        return n + _outside(contexts, -torch.inf, n)
    if factor == 0:
        return factor * n + _outside(contexts, -torch.inf, n)
    n = n + _outside(contexts, math.copysign(torch.inf, -factor), n)
    extremum = torch.amax if factor > 0 else torch.amin
    return factor * (n - extremum(n.detach(), -2, keepdim=True))


def _outside(mask: Tensor, value: float, like: Tensor) -> Tensor:
    """Zero within the mask and `value` outside it."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, value)


def relevances(products: Tensor, attended_norms: Tensor, queries: Tensor, relevance: str = "cosine") -> Tensor:
    """The cosine of SCAN Eq. 4 of every query from q·a and ‖a‖ (…, Q), or the "projection", by a length ‖q‖ of 1."""
    lengths = vector_length(queries) if relevance == "cosine" else torch.ones_like(attended_norms)
    scales = power_of_two(lengths), power_of_two(attended_norms)
    product, floor = lengths * scales[0] * (attended_norms * scales[1]), EPS * scales[0] * scales[1]
    is_small = (product != 0) & (product < floor)
    return safe_divide(products * scales[0] * scales[1], floor.where(is_small, product))


def score_with_attention(
    weights: Tensor, relevance: Tensor, context_mask: Tensor, query_mask: Tensor, options: ScanOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (P,), weights (P, Q, C) and relevances (P, Q), zero at padding, from weights (P, C, Q) and relevances."""
    scores = pool(relevance, query_mask, options.pooling, options.lambda_lse)
    mask = query_mask[:, :, None] & context_mask[:, None, :]
    return scores, weights.mT.masked_fill(~mask, 0), relevance.masked_fill(~query_mask, 0)


def attended_or_none(vectors: Tensor, query_mask: Tensor, wanted: bool) -> Tensor:
    """Attended vectors (P, Q, D), zero at padding; (P, Q, 0) where they are not wanted."""
    return vectors.masked_fill(~query_mask[..., None], 0) if wanted else vectors[..., :0]
