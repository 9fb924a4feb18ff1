"""Backend "reference" of stacked cross attention: the formulas of SCAN as einsums, everything materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.cross_attention.attention import (
    attended_or_none,
    attention_weights,
    relevances,
    score_with_attention,
)
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import mean, pool, vector_length
from crossret_kernels.padded.forms import pad_pairs


def scan_scores_reference(regions: Ragged, words: Ragged, pairs: Tensor | None, options: ScanOptions) -> Tensor:
    """Scores with the attended vectors built, at the inputs' precision: the oracle when the inputs are float64."""
    scores = []
    for way in options.ways:
        _, _, relevance, _, query_mask = _attend(regions, words, pairs, way)
        scores.append(pool(relevance, query_mask.expand(relevance.shape), way.pooling, way.lambda_lse))
    return mean(scores)


def scan_attend_reference(
    regions: Ragged, words: Ragged, pairs: Tensor, options: ScanOptions, attended: bool
) -> tuple[Tensor, ...]:
    """Scores of pairs, attended vectors where they are wanted, weights and relevances, likewise."""
    vectors, weights, relevance, context_mask, query_mask = _attend(regions, words, pairs, options)
    scores, *others = score_with_attention(weights, relevance, context_mask, query_mask, options)
    return scores, attended_or_none(vectors, query_mask, attended), *others


def _attend(
    regions: Ragged, words: Ragged, pairs: Tensor | None, options: ScanOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attended vectors (…, Q, D), weights (…, C, Q), relevances (…, Q), masks of contexts (…, C) and queries (…, Q)."""
    v, v_mask, e, e_mask = pad_pairs(regions, words, pairs, options.normalize)
    sides = (v, v_mask, e, e_mask) if options.direction == "t2i" else (e, e_mask, v, v_mask)
    contexts, context_mask, queries, query_mask = sides
    s = torch.einsum("...cd,...qd->...cq", contexts, queries)
    alpha = attention_weights(s, context_mask, query_mask, options)
    vectors = torch.einsum("...cq,...cd->...qd", alpha, contexts)
    products = (queries * vectors).sum(-1)
    relevance = relevances(products, vector_length(vectors), queries, options.relevance)
    return vectors, alpha, relevance, context_mask, query_mask
