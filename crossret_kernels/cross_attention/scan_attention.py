"""`scan_attention`: what the scores of listed pairs are made of, by PyTorch operations."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from crossret_kernels.backends import select_in_torch
from crossret_kernels.cross_attention.chunked import scan_attention_chunked
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.cross_attention.reference import scan_attention_reference
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.pairs import ATTENDING, as_asked, as_pairs
from crossret_kernels.inputs.sides import Features, Lengths, as_sides
from crossret_kernels.inputs.tensors import Array


class ScanAttention(NamedTuple):
    """Of P pairs, each with Q queries (words for t2i, regions for i2t) that attend to C contexts (the other side).

    All are differentiable and zero where an item has no row. Q and C are the widths of padded features, the longest
    item's length of packed and listed ones. With candidates (n_queries, K, …) for (P, …).

    Attributes:
        scores: (P,).
        weights: (P, Q, C), the softmax of SCAN Eq. 3: how each query attends to the contexts.
        relevances: (P, Q), the cosines of Eq. 4 that are pooled to the score.
    """

    scores: Tensor
    weights: Tensor
    relevances: Tensor


def scan_attention(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    direction: str = "t2i",
    raw_feature_norm: str = "clipped_l2norm",
    clip_slope: float = 0.1,
    lambda_softmax: float = 9.0,
    pooling: str = "avg",
    lambda_lse: float = 6.0,
    normalize: bool = False,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
) -> ScanAttention:
    """The attention by which `scan_scores` scores pairs, for pictures and losses of your own.

    Args:
        pairs, candidates: one of them is needed, as the weights of all pairs would fill the memory.
        backend: "torch" or "reference"; None takes "torch", or "reference" where CROSSRET_BACKEND prefers it;
            their scores differ from other backends' in rounding.
        all others: as in `scan_scores`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`; neither pairs nor candidates; packed or listed
            features inside torch.compile.
    """
    options = checked(
        CrossAttentionOptions, direction, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse, normalize
    )
    images, captions = as_sides(regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    selected = as_pairs(pairs, candidates, query, ATTENDING[direction], images, captions)
    if selected is None:
        raise ValueError("scan_attention takes pairs or candidates: the weights of all pairs are not kept")
    made_by = "the attention weights are made", "scan_attention takes padded features"
    chosen = select_in_torch(backend, *made_by, images, captions)
    attend = scan_attention_chunked if chosen == "torch" else scan_attention_reference
    listed = selected.listed()
    made = attend(images, captions, listed, options)
    return ScanAttention(*as_asked(made, images, captions, listed, empty_score, candidates))
