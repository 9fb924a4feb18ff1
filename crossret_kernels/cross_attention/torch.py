"""Backend "torch" of stacked cross attention: docs/kernels.md §1 with both identities, in bounded chunks."""

from __future__ import annotations

from torch import Tensor

from crossret_kernels.cross_attention.attention import (
    attended_or_none,
    attention_weights,
    relevances,
    score_with_attention,
)
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import mean, pool, safe_normalize, vector_length
from crossret_kernels.padded.chunked import AttentionBlock, Block, chunked_pairs, chunked_scores


def scan_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: ScanOptions) -> Tensor:
    """Scores chunk by chunk; of all pairs by the Gram form, without the attended vectors."""

    def one_way(block: Block, options: ScanOptions) -> Tensor:
        attention = block.as_attention(options.direction)
        p = _weights(attention, options)
        norms = attention.attended_norms(p)
        relevance = relevances(_products(attention, p), norms, attention.queries, options.relevance)
        return pool(relevance, attention.query_mask, options.pooling, options.lambda_lse)

    def score(block: Block) -> Tensor:
        return mean([one_way(block, way) for way in options.ways])

    return chunked_scores(regions, words, pairs, score, safe_normalize if options.normalize else None)


def scan_attend_chunked(
    regions: Ragged, words: Ragged, pairs: Tensor, options: ScanOptions, attended: bool
) -> tuple[Tensor, ...]:
    """Scores of pairs as `scan_scores_chunked` computes them, attended vectors where they are wanted, weights and
    relevances.
    """

    def score(block: Block) -> tuple[Tensor, ...]:
        attention = block.as_attention(options.direction)
        p = _weights(attention, options)
        vectors = p.mT @ attention.contexts
        norms = vector_length(vectors)
        relevance = relevances(_products(attention, p), norms, attention.queries, options.relevance)
        masks = attention.context_mask, attention.query_mask
        scores, *others = score_with_attention(p, relevance, *masks, options)
        return scores, attended_or_none(vectors, attention.query_mask, attended), *others

    return chunked_pairs(regions, words, pairs, score, safe_normalize if options.normalize else None)


def _weights(attention: AttentionBlock, options: ScanOptions) -> Tensor:
    """(…, C, Q)."""
    return attention_weights(attention.similarities, attention.context_mask, attention.query_mask, options)


def _products(attention: AttentionBlock, weights: Tensor) -> Tensor:
    """q·a of every query (…, Q)."""
    return (weights * attention.similarities).sum(-2)
