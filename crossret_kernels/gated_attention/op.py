"""`gated_attention_scores` and `gated_attention_weights`: SMAN's multi-modal attention in pairs; checks, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.backends import select_in_torch
from crossret_kernels.gated_attention.options import GatedAttention, check_parameters
from crossret_kernels.gated_attention.reference import gated_attention_reference
from crossret_kernels.gated_attention.torch import gated_attention_chunked
from crossret_kernels.inputs.call import Features, Lengths, as_call
from crossret_kernels.inputs.options import check_number
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, check_operand


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


def gated_attention_scores(
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
) -> Tensor:
    """Similarities of images and captions by SMAN's levels, the last of which is made for each pair (Ji et al.).

    A gate mixes the memories of image and caption (Eq. 12); guided by it, attention over the regions and over the words
    makes the pair's context vectors v⁽²⁾ (Eqs. 13–15, without the further 1/M) and t⁽²⁾ (Eqs. 16–18). The score is
    the sum of the levels' cosines (Eqs. 19, 20): of v⁽²⁾ and t⁽²⁾, and of the given context vectors.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score: as `scan_scores` takes them,
            but for D, which may differ: padded regions are (n_images, M, D_v) and words (n_captions, L, D).
        region_contexts: (n_images, K, D), the images' context vectors of the K ≥ 1 earlier levels: v⁽⁰⁾, v⁽¹⁾.
        word_contexts: (n_captions, K, D), the captions': t⁽⁰⁾, t⁽¹⁾.
        parameters: of the gate, both attentions and the embedding; as the context vectors on the features' device,
            float64 with float64 features, else of any narrower floating point.
        alpha: α of Eq. 12 in 0..1: the share of the own modality's memory in each gate; 1 leaves the other's out.
        pairs, candidates, query: as in `pairwise_scores`.
        backend: "torch" or "reference"; None takes what CROSSRET_BACKEND prefers where it serves the call, else
            "torch". No kernels make this.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. Computed in float32 and
        returned in it, in float64 for float64 features. Differentiable in features, context vectors and all parameters.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`, of context vectors, parameters and alpha, too;
            packed or listed features inside torch.compile.

    NumPy arrays serve as in `scan_scores`. A NaN feature or context vector makes its item's scores NaN and no
    others. A zero vector's cosine is zero and so is its gradient. All but "reference" make keys and embedded regions
    once an image, keys of words once a run of images that are held together (docs/kernels.md §3), hold few of them and
    of what pairs take at a time, and recompute all in the backward pass; inside torch.compile, under torch.func and for
    second derivatives the whole call is one block, whose memory grows with the pairs.
    """
    sides = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    selection = (pairs, candidates, query)
    results = attend(sides, (region_contexts, word_contexts), parameters, alpha, selection, backend, weights=False)
    return results[0]


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

    One of `pairs` and `candidates` is needed, as the weights of all pairs would fill the memory.
    """
    if pairs is None and candidates is None:
        raise ValueError("gated_attention_weights takes pairs or candidates: the weights of all pairs are not kept")
    sides = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    selection = (pairs, candidates, query)
    results = attend(sides, (region_contexts, word_contexts), parameters, alpha, selection, backend, weights=True)
    return GatedAttentionWeights(*results)


def attend(
    sides: tuple[Any, ...],
    contexts: tuple[Array, Array],
    parameters: GatedAttention,
    alpha: float,
    selection: tuple[Array | None, Array | None, str | None],
    backend: str | None,
    *,
    weights: bool,
) -> Sequence[Tensor]:
    """Scores of a `selection` of pairs, and their weights if these are wanted.

    `sides` are what `as_sides` takes, the score of empty items last.
    """
    alpha = check_number("alpha", alpha)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in 0..1, not {alpha!r}")
    call = as_call(sides, *selection, same_dim=False)
    images, captions = call.images, call.captions
    check_parameters(parameters, images.values, captions.values)
    vectors = _check_contexts(*contexts, images, captions)
    takes_padded = "gated attention takes padded features"
    backend_name = select_in_torch(backend, "gated attention is made", takes_padded, images, captions)
    values, listed = images.values, call.listed
    results: Sequence[Tensor]
    with torch.autocast(values.device.type, enabled=False):
        tensors = parameters.to(torch.promote_types(values.dtype, torch.float32))
        if backend_name == "reference":
            results = gated_attention_reference(images, captions, *vectors, tensors, alpha, listed)
        else:
            results = gated_attention_chunked(images, captions, *vectors, tensors, alpha, listed, weights)
    return call.as_results(results if weights else results[:1])


def _check_contexts(
    region_contexts: Array, word_contexts: Array, images: Ragged, captions: Ragged
) -> tuple[Tensor, Tensor]:
    """The two as tensors; TypeError or ValueError where they are no context vectors of these, of as many levels."""
    tensors: list[Tensor] = []
    for name, contexts, side in (("region", region_contexts, images), ("word", word_contexts, captions)):
        levels = contexts.shape[1] if isinstance(contexts, (Tensor, np.ndarray)) and contexts.ndim == 3 else 1
        tensor = check_operand(
            f"{name}_contexts",
            contexts,
            side.values,
            f"{name}s",
            f"(n_{'images' if side is images else 'captions'}, K, D)",
            (len(side), tensors[0].size(1) if tensors else levels, captions.values.size(-1)),
        )
        tensors.append(tensor)
    if tensors[0].size(1) == 0:
        raise ValueError("region_contexts and word_contexts have K = 0: there is at least one earlier level")
    return tensors[0], tensors[1]
