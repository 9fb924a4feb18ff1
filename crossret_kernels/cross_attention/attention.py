"""Stacked cross attention of padded items in PyTorch operations: what backends "torch" and "reference" share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.arithmetic import pool, safe_divide, safe_sqrt
from crossret_kernels.cross_attention.options import CrossAttentionOptions

EPS = 1e-8  # of the published code: added to norms after the square root, and the floor of the cosine's denominator


def attention_logits(
    similarities: Tensor, context_mask: Tensor, query_mask: Tensor, options: CrossAttentionOptions
) -> Tensor:
    """λ₁·n of kernels.md §1, steps 2–4 (SCAN Eq. 3), (…, C, Q), minus infinity at contexts that are padding."""
    queries = query_mask[..., None, :]
    x = similarities.masked_fill(~queries, 0)
    if options.clips:
        x = F.leaky_relu(x, options.clip_slope)
    if options.norm == "softmax":
        n = torch.softmax(x.masked_fill(~queries, -torch.inf), -1)
    elif options.norm == "none":
        n = x
    else:
        norm = (
            x.abs().sum(-1, keepdim=True) if options.norm == "l1norm" else safe_sqrt(x.square().sum(-1, keepdim=True))
        )
        n = safe_divide(x, norm.where(norm == 0, norm + EPS))
    return (options.lambda_softmax * n).masked_fill(~context_mask[..., :, None], -torch.inf)


def relevances(products: Tensor, attended_norms: Tensor, queries: Tensor) -> Tensor:
    """The cosine of SCAN Eq. 4 of every query from q·a and ‖a‖ (…, Q)."""
    lengths = safe_sqrt(queries.square().sum(-1)) * attended_norms
    return safe_divide(products, lengths.where(lengths == 0, lengths.clamp(min=EPS)))


def score_with_attention(
    weights: Tensor, relevance: Tensor, context_mask: Tensor, query_mask: Tensor, options: CrossAttentionOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (P,), weights (P, Q, C) and relevances (P, Q), zero at padding, from weights (P, C, Q) and relevances."""
    scores = pool(relevance, query_mask, options.pooling, options.lambda_lse)
    both = query_mask[:, :, None] & context_mask[:, None, :]
    return scores, weights.mT.masked_fill(~both, 0), relevance.masked_fill(~query_mask, 0)
