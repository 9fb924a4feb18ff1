"""The matching step of pairs whose features are their own (HAN §3.3), without normalised copies of those."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.cross_attention.attention import attention_logits, relevances, score_with_attention
from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.options import HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.softmax import softmax
from crossret_kernels.padded.arithmetic import norm, safe_divide


class PairFeatures(NamedTuple):
    """Regions (P, R, D) and words (P, W, D) of P pairs, as each pair has them, and their masks (P, R) and (P, W)."""

    regions: Tensor
    words: Tensor
    region_mask: Tensor
    word_mask: Tensor


def match_locally(
    pairs: PairFeatures, options: HeterogeneousOptions, products: Products
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (P,), weights (P, Q, C) and relevances (P, Q).

    Norms divide the similarities and the weights, which are short, and not the features. The attended vectors are
    built: the Gram matrix of a pair's own contexts costs more.
    """
    regions, words = (pairs.regions, pairs.region_mask), (pairs.words, pairs.word_mask)
    (contexts, context_mask), (queries, query_mask) = (
        (regions, words) if options.direction == "t2i" else (words, regions)
    )
    context_norms, query_norms = (norm(x) for x in (contexts, queries))
    cosines = safe_divide(safe_divide(contexts @ queries.mT, context_norms[:, :, None]), query_norms[:, None, :])
    weights = softmax(attention_logits(cosines, context_mask, query_mask, options.local).mT, products).mT
    attended = safe_divide(weights, context_norms[:, :, None]).mT @ contexts
    # Queries are of unit length but for zero vectors, whose length stays 0.
    lengths = query_norms.sign()[..., None]
    relevance = relevances((weights * cosines).sum(-2), norm(attended), lengths)
    return score_with_attention(weights, relevance, context_mask, query_mask, options.local)


def match_globally(pairs: PairFeatures) -> Tensor:
    """The cosines (P,) of the first region with the first word of each pair."""
    v, e = first_valid(pairs.regions, pairs.region_mask), first_valid(pairs.words, pairs.word_mask)
    product = safe_divide((v * e).sum(-1), norm(v))
    return safe_divide(product, norm(e))


def first_valid(rows: Tensor, mask: Tensor) -> Tensor:
    """(n, D), of rows (n, L, D) the first that the mask (n, L) leaves."""
    return rows[torch.arange(len(rows), device=rows.device), mask.to(torch.int8).argmax(1)]
