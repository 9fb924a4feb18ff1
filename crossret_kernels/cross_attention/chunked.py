"""Backend "torch" of stacked cross attention: docs/kernels.md §1 with both identities, in bounded chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.cross_attention.attention import attention_logits, relevances, score_with_attention
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import pool, safe_normalize
from crossret_kernels.padded.chunked import Attention, Block, chunked_pairs, chunked_scores


def scan_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: CrossAttentionOptions) -> Tensor:
    """Scores chunk by chunk; of all pairs by the Gram form, without the attended vectors."""

    def score(block: Block) -> Tensor:
        attention = block.as_attention(options.direction)
        _, relevance = _attend(attention, options)
        return pool(relevance, attention.query_mask, options.pooling, options.lambda_lse)

    return chunked_scores(regions, words, pairs, score, safe_normalize if options.normalize else None)


def scan_attention_chunked(
    regions: Ragged, words: Ragged, pairs: Tensor, options: CrossAttentionOptions
) -> tuple[Tensor, ...]:
    """Scores of pairs as `scan_scores_chunked` computes them, with the weights and relevances on the way."""

    def score(block: Block) -> tuple[Tensor, ...]:
        attention = block.as_attention(options.direction)
        weights, relevance = _attend(attention, options)
        return score_with_attention(weights, relevance, attention.context_mask, attention.query_mask, options)

    return chunked_pairs(regions, words, pairs, score, safe_normalize if options.normalize else None)


def _attend(attention: Attention, options: CrossAttentionOptions) -> tuple[Tensor, Tensor]:
    """Weights (…, C, Q) and relevances (…, Q)."""
    logits = attention_logits(attention.similarities, attention.context_mask, attention.query_mask, options)
    p = torch.softmax(logits, -2)
    products = (p * attention.similarities).sum(-2)
    return p, relevances(products, attention.attended_norms(p), attention.queries)
