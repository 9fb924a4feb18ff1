"""`gated_attention_weights`: where SMAN's multi-modal attention of listed pairs looks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from crossret_kernels.gated_attention.op import attend
from crossret_kernels.gated_attention.options import GatedAttention
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.tensors import Array


class GatedAttentionWeights(NamedTuple):
    """Scores and weights of P pairs; with candidates (n_queries, K, …) for (P, …).

    All are differentiable. Weights are zero behind the ends of items; M and L are the widths of padded features, the
    longest item's length of packed and listed ones.

    Attributes:
        scores: (P,).
        region_weights: (P, M), the softmax over an image's regions (SMAN Eq. 14).
        word_weights: (P, L), the softmax over a caption's words (Eq. 17).
    """

    scores: Tensor
    region_weights: Tensor
    word_weights: Tensor


def gated_attention_weights(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    region_contexts: Array,
    word_contexts: Array,
    parameters: GatedAttention,
    alpha: float = 0.9,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
) -> GatedAttentionWeights:
    """The attention by which `gated_attention_scores`, whose arguments and errors it has, scores pairs.

    One of `pairs` and `candidates` is needed, as the weights of all pairs would fill the memory. No kernels make them:
    backends are "torch" and "reference".
    """
    if pairs is None and candidates is None:
        raise ValueError("gated_attention_weights takes pairs or candidates: the weights of all pairs are not kept")
    given = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    asked = (pairs, candidates, query)
    made = attend(given, (region_contexts, word_contexts), parameters, alpha, asked, backend, weights=True)
    return GatedAttentionWeights(*made)
