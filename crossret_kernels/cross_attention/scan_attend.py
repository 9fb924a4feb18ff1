"""Attended vectors, weights, contributions of listed pairs: `scan_attend`, `scan_attention`, `scan_contributions`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.backends import UnsupportedByBackend, select_backend
from crossret_kernels.cross_attention.op import ATTENTION_OPTIONS
from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.reference import scan_attend_reference
from crossret_kernels.cross_attention.torch import scan_attend_chunked
from crossret_kernels.inputs.call import Features, Lengths, as_call, check_traceable
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.operations import define
from crossret_kernels.padded.arithmetic import pooled_shares
from crossret_kernels.torch_internals import IN_TORCH, reduced_float32, transformed
from crossret_kernels.two_sides import SIDES, check_supported, scores_like

# Numbers of places for the queries and contexts of a pair, and whether attended vectors are wanted.
_OPTIONS = f"{ATTENTION_OPTIONS}, SymInt query_places, SymInt context_places, bool attended"
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"


def _attended_like(*arguments: Any) -> tuple[Tensor, ...]:
    queries, contexts, attended = arguments[-3:]
    scores = scores_like(*arguments)
    dim = arguments[0].size(-1) if attended else 0
    places = ((queries, dim), (queries, contexts), (queries,))
    return scores, *(scores.new_empty((scores.size(0), *last)) for last in places)


_SIGNATURE = SIDES, _OPTIONS, _attended_like
_TRITON = "cross_attention.triton.attend:attend", "cross_attention.triton.attend:gradients"
KERNELS = {
    "cpu": define("scan_attend", *_SIGNATURE, made=_FOUR, results=4, autocast=True),
    "triton": define("scan_attend_triton", *_SIGNATURE, made=_FOUR, results=4, kernels=_TRITON, autocast=True),
}
_IN_TORCH = {"torch": scan_attend_chunked, "reference": scan_attend_reference}


class ScanAttended(NamedTuple):
    """Results for P pairs, each with Q queries (words for t2i, regions for i2t) that attend to C contexts (the other
    side).

    All are differentiable and zero where an item has no row. Q and C are the widths of padded features, the longest
    item's length of packed and listed ones. With candidates (n_queries, K, …) for (P, …).

    Attributes:
        scores: (P,).
        attended: (P, Q, D), what each query attends to: the contexts averaged by the weights (SCAN Eq. 2), of
            features that are to be normalised by their unit vectors.
        weights: (P, Q, C), the softmax of SCAN Eq. 3, or what options have in its place: how each query attends to the
            contexts.
        relevances: (P, Q), the cosines of Eq. 4, or projections, that are pooled to the score.
    """

    scores: Tensor
    attended: Tensor
    weights: Tensor
    relevances: Tensor


class ScanAttention(NamedTuple):
    """`ScanAttended` without the attended vectors."""

    scores: Tensor
    weights: Tensor
    relevances: Tensor


class ScanContributions(NamedTuple):
    """Scores of pairs and what each query brings to them, as `scan_contributions` returns them; without gradient.

    Attributes:
        scores, weights, relevances: as of `ScanAttended`.
        contributions: (P, Q) float64, each query's share of the score. Summed in float64 and rounded to float32 they
            are a float32 score, bit for bit; of float64 features they add up to float64's rounding.
    """

    scores: Tensor
    weights: Tensor
    relevances: Tensor
    contributions: Tensor


def scan_attend(
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
) -> ScanAttended:
    """Attended vectors, weights and relevances of each query of listed pairs: SCAN Eqs. 2–5, for scorers of your own.

    Similarity vectors of words and what they attend to, as SGRAF, IMRAM and RCAR reason over them, are made of it.

    Args:
        pairs, candidates: one of them is needed, as attended vectors of all pairs would fill the memory: a pair's take
            4 Q D bytes.
        backend: "cpu", "triton", "torch" or "reference"; None takes what CROSSRET_BACKEND prefers where it serves the
            call, else the fastest that does. "torch" alone is differentiable twice and takes float64, and None takes
            it under torch.func's transforms.
        all others: as in `scan_scores`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`; neither pairs nor candidates; packed or listed
            features inside torch.compile.
    """
    options = checked(ScanOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    return ScanAttended(*attend("scan_attend", sides, options, pairs, candidates, query, backend))


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
        all: as in `scan_attend`, whose errors it has; scores differ between backends in rounding.
    """
    options = checked(ScanOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    scores, _, *others = attend("scan_attention", sides, options, pairs, candidates, query, backend)
    return ScanAttention(scores, *others)


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


def attend(
    name: str, sides: tuple[Any, ...], options: ScanOptions, pairs: Array | None, candidates: Array | None,
    query: str | None, backend: str | None,
) -> list[Tensor]:  # fmt: skip
    """The results of the function of this name, of sides as `as_sides` takes them; `scan_attend` alone has attended
    vectors, others get (P, Q, 0).
    """
    choose(f"direction of {name}", options.direction, DIRECTIONS)
    call, attended = as_call(sides, pairs, candidates, query, options.direction), name == "scan_attend"
    if call.pairs is None:
        raise ValueError(f"{name} takes pairs or candidates: what is made of all pairs is not kept")
    check_traceable(f"{name} takes padded features", call.images, call.captions)
    values = call.values
    refusal = IN_TORCH if transformed() else None
    backend_name = select_backend(backend, values.device, values.dtype, refusal, tuple(KERNELS))
    if backend_name in KERNELS:
        queries, contexts = call.sides(options.direction)
        widths = queries.width, contexts.width
        codes = (call.empty_score, reduced_float32(backend_name != "cpu"), *options.codes, *widths, attended)
        numbers = 1 + contexts.width + (values.size(-1) if attended else 0)
        try:
            check_supported(backend_name, options)
            return [call.as_scores(x) for x in call.run(KERNELS[backend_name], codes, queries=queries, numbers=numbers)]
        except UnsupportedByBackend:
            if backend is not None:
                raise
            backend_name = "torch"
    return call.as_results(_IN_TORCH[backend_name](call.images, call.captions, call.pairs.listed(), options, attended))
