"""`scan_contributions`: what each word or region brings to the scores of listed pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.scan_attend import attend
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.padded.arithmetic import pooled_shares


class ScanContributions(NamedTuple):
    """Scores of pairs and what each query brings to them, as `scan_contributions` returns them; without gradient.

    Shapes are `ScanAttention`'s: of P pairs, each with Q queries (words for t2i, regions for i2t) that attend to C
    contexts; with candidates (n_queries, K, …) for (P, …). All but scores are zero where an item has no row.

    Attributes:
        scores: (P,).
        weights: (P, Q, C), how each query attends to the contexts.
        relevances: (P, Q), each query's cosine with what it attends to, or its projection on that.
        contributions: (P, Q) float64, each query's share of the score. Summed in float64 and rounded to float32 they
            are a float32 score, bit for bit; of float64 features they add up to float64's rounding.
    """

    scores: Tensor
    weights: Tensor
    relevances: Tensor
    contributions: Tensor


def scan_contributions(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    options: ScanOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[ScanFields],
) -> ScanContributions:
    """Scores of `scan_attention` as sums over the attending side: how relevant each query is, and its share.

    A share is, by pooling:

    - "sum", "avg": the relevance R_i, or R_i by the number of queries. What the scores' arithmetic rounded differently,
      all queries carry alike.
    - "softmax": p_i R_i by the weights p = softmax(λ₂ R).
    - "max": all of the score for the most relevant query, of equals for the first.
    - "lse", S = log(Σ exp(λ₂ R_i)) / λ₂: p_i S by the weights p_i = exp(λ₂ R_i) / Σ exp(λ₂ R_j), which are ∂S/∂R_i.
      S is Σ p_i R_i and the entropy of the weights by λ₂, Σ p_i (−log p_i) / λ₂; what is query i's of both is p_i S,
      since R_i − log p_i / λ₂ is S for every i. Where S is negative, so are all shares.

    Arguments and errors are those of `scan_attention`. A pair of an empty item has no contributions: they are 0 there,
    whatever `empty_score` is.
    """
    options = checked(ScanOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    with torch.no_grad():
        scores, _, weights, relevances = attend("scan_contributions", sides, options, pairs, candidates, query, backend)
        # A query that exists has some weight other than zero, or NaN.
        mask = (weights != 0).any(-1)
        shares = pooled_shares(scores, relevances, mask, options.pooling, options.lambda_lse)
    return ScanContributions(scores, weights, relevances, shares)
