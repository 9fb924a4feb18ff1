"""`scan_attention`: scores, weights and relevances of listed pairs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.scan_attend import attend
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.tensors import Array


class ScanAttention(NamedTuple):
    """Results for P pairs, each with Q queries (words for t2i, regions for i2t) that attend to C contexts (the other
    side).

    All are differentiable and zero where an item has no row. Q and C are the widths of padded features, the longest
    item's length of packed and listed ones. With candidates (n_queries, K, …) for (P, …).

    Attributes:
        scores: (P,).
        weights: (P, Q, C), the softmax of SCAN Eq. 3, or what options have in its place: how each query attends to the
            contexts.
        relevances: (P, Q), the cosines of Eq. 4, or projections, that are pooled to the score.
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
    options: ScanOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[ScanFields],
) -> ScanAttention:
    """The attention by which `scan_scores` scores pairs, for pictures and losses of your own: `scan_attend` without the
    attended vectors.

    Args:
        pairs, candidates: one of them is needed, as the weights of all pairs would fill the memory.
        backend: as in `scan_attend`; scores differ between backends in rounding.
        all others: as in `scan_scores`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`; neither pairs nor candidates; packed or listed
            features inside torch.compile.
    """
    options = checked(ScanOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    scores, _, *others = attend("scan_attention", sides, options, pairs, candidates, query, backend)
    return ScanAttention(scores, *others)
