"""Late interaction (ColBERT, ColPali) over `maxsim_scores`' kernels, under that field's names and shapes.

Every token of a query takes the most similar token of a document, and their similarities add up: SCAN's Sum-Max
(Eq. 10) with queries in the images' place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.inputs.blocks import FeatureBlocks, device_of
from crossret_kernels.inputs.call import Call, Features, Lengths
from crossret_kernels.inputs.documents import (
    DOCUMENTS,
    NAMES,
    QUERIES,
    call_of,
    checked_sides,
    diagonal_pairs,
    listed_pairs,
    several,
    weights_of,
)
from crossret_kernels.inputs.options import check_flag, checked, choose
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.contributions import maxsim_alignment, maxsim_contributions
from crossret_kernels.maxsim.op import score_both_ways, score_call, weighted_scores
from crossret_kernels.maxsim.options import MaxSimOptions, PoolingFields
from crossret_kernels.maxsim.weights import Weights
from crossret_kernels.topk.candidates import as_candidates, candidate_topk
from crossret_kernels.topk.streamed import Progress, feature_topk

# Which side's tokens take their best: what `maxsim_scores` calls it where queries are in the images' place.
DIRECTIONS = {"q2d": "i2t", "d2q": "t2i"}
WEIGHTS = "query_weights", "document_weights"


class BothWays(NamedTuple):
    """Scores in either direction, as `maxsim` returns them."""

    q2d: Tensor
    d2q: Tensor


class Contributions(NamedTuple):
    """Scores of pairs and what each token brings to them, as `explain` returns them; without gradient.

    T tokens are the queries' for "q2d", the documents' for "d2q". (n_queries, K, …) in place of (P, …) of queries with
    documents of their own.

    Attributes:
        scores: (P,), those of `maxsim_pairs`.
        places: (P, T) int64, the row within its item of the token that each takes, as given; of equals the first; −1
            where there is no such token.
        similarities: (P, T) float64, with that token; 0 where there is none.
        contributions: (P, T) float64, what each brings to the score. Summed in float64 and rounded to float32 they are
            a float32 score, bit for bit; of float64 features they add up to float64's rounding.
    """

    scores: Tensor
    places: Tensor
    similarities: Tensor
    contributions: Tensor


class Retrieved(NamedTuple):
    """Results of `retrieve`, and how they match. T tokens are the queries' for "q2d", the documents' for "d2q".

    Attributes:
        values, indices: (n_queries, k), as `retrieve` returns them.
        places: (n_queries, k, T) int64, the row within the document found (within the query for "d2q") of the token
            that each takes, as `explain` finds it; −1 where there is no such token, or nothing was found.
        similarities: (n_queries, k, T) float64, with that token; 0 where there is none.
    """

    values: Tensor
    indices: Tensor
    places: Tensor
    similarities: Tensor


def maxsim(
    queries: Features,
    documents: Features,
    query_lengths: Lengths = None,
    document_lengths: Lengths = None,
    *,
    query_mask: Array | None = None,
    document_mask: Array | None = None,
    query_weights: Weights = None,
    document_weights: Weights = None,
    direction: str = "q2d",
    pooling: str = "sum",
    normalize: bool = False,
    empty_score: float | None = None,
    backend: str | None = None,
    **fields: Unpack[PoolingFields],
) -> Tensor:
    """MaxSim of every query with every document, or with documents of its own (ColBERT, Khattab & Zaharia 2020, Eq. 3).

    Args:
        queries: their tokens' vectors: padded (n_queries, Q, D); or packed ``(values (rows, D), cu_seqlens)``; or a
            list of (Q_i, D); or (Q, D) of one query. float32, bfloat16, float16 or float64, tensors or NumPy arrays.
        documents: the same, (n_documents, L, D) and so on; or (n_queries, K, L, D), K documents for each query.
        query_lengths, document_lengths: (n,) integers, how many rows of each item are tokens; (n_queries, K) of
            documents of each query. None: all are tokens, unless masks tell.
        query_mask: in place of lengths, (n_queries, Q) bool, True where there is a token, anywhere; (Q,) of one query.
            What lies elsewhere is never read and never wins.
        document_mask: the same, (n_documents, L), (n_queries, K, L) or (L,).
        query_weights: at least 0, what each query token's maximum counts for ("q2d"), laid out as the queries, but for
            D. Differentiable. The token's vector is multiplied by it.
        document_weights: the same of documents' tokens ("d2q").
        direction: "q2d": every query token takes its best document token; "d2q" the other way round.
        pooling: of those maxima: "sum", "avg", "max", "lse", "softmax" or "topk".
        **fields: those of ``MaxSimOptions`` that go with one: ``top=16`` with "topk", ``lambda_lse``, ``clip_slope``,
            and ``context_pooling="lse", temperature=…``.
        normalize: whether to divide every vector by its L2 norm first, as for cosine similarity.
        empty_score: what a pair scores of which an item has no token; may be infinite. None: that is an error.
        backend: as in `maxsim_scores`.

    Returns:
        (n_queries, n_documents), or (n_queries, K) of queries with documents of their own; contiguous, float32,
        float64 for float64. Differentiable in queries and documents.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim_scores`; messages name these arguments.
    """
    lengths, masks = (query_lengths, document_lengths), (query_mask, document_mask)
    call = call_of(queries, documents, lengths, masks, empty_score)
    options = _options(direction, pooling, normalize, fields)
    weights = weights_of(queries, query_weights, WEIGHTS[0]), weights_of(documents, document_weights, WEIGHTS[1])
    return call.as_scores(weighted_scores(call, options, backend, *weights, names=WEIGHTS))


def maxsim_both_ways(
    queries: Features,
    documents: Features,
    query_lengths: Lengths = None,
    document_lengths: Lengths = None,
    *,
    pairs: Array | None = None,
    query_mask: Array | None = None,
    document_mask: Array | None = None,
    pooling: str = "sum",
    normalize: bool = False,
    empty_score: float | None = None,
    backend: str | None = None,
    **fields: Unpack[PoolingFields],
) -> BothWays:
    """`maxsim` in either direction, on the CPU of one product.

    Args:
        pairs: (P, 2) integers (query, document): only these pairs are scored; documents are for all queries then.
        all others: as in `maxsim`, whose errors it raises.
    """
    lengths, masks = (query_lengths, document_lengths), (query_mask, document_mask)
    call = call_of(queries, documents, lengths, masks, empty_score, pairs)
    return BothWays(*map(call.as_scores, score_both_ways(call, _options("q2d", pooling, normalize, fields), backend)))


def maxsim_pairs(
    queries: Features,
    documents: Features,
    query_lengths: Lengths = None,
    document_lengths: Lengths = None,
    *,
    pairs: Array | None = None,
    query_mask: Array | None = None,
    document_mask: Array | None = None,
    query_weights: Weights = None,
    document_weights: Weights = None,
    direction: str = "q2d",
    pooling: str = "sum",
    normalize: bool = False,
    empty_score: float | None = None,
    backend: str | None = None,
    **fields: Unpack[PoolingFields],
) -> Tensor:
    """MaxSim of listed pairs, or of every query with the document in its place.

    Args:
        pairs: (P, 2) integers (query, document); None: the first query with the first document, and so on, of as many
            queries as documents.
        queries, documents, query_lengths, document_lengths, query_mask, document_mask: as in `maxsim`; documents are
            for all queries.
        query_weights, document_weights, direction, pooling, **fields, normalize, empty_score, backend: as in `maxsim`.

    Returns:
        (P,), float32, float64 for float64. Differentiable in queries and documents.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim`.
    """
    lengths, masks = (query_lengths, document_lengths), (query_mask, document_mask)
    sides = checked_sides(queries, documents, lengths, masks, empty_score)
    call = diagonal_pairs(*sides, empty_score) if pairs is None else listed_pairs(sides, pairs, empty_score)
    options = _options(direction, pooling, normalize, fields)
    weights = weights_of(queries, query_weights, WEIGHTS[0]), weights_of(documents, document_weights, WEIGHTS[1])
    return call.as_scores(weighted_scores(call, options, backend, *weights, names=WEIGHTS))


def explain(
    queries: Features,
    documents: Features,
    query_lengths: Lengths = None,
    document_lengths: Lengths = None,
    *,
    pairs: Array | None = None,
    query_mask: Array | None = None,
    document_mask: Array | None = None,
    direction: str = "q2d",
    pooling: str = "sum",
    normalize: bool = False,
    backend: str | None = None,
    **fields: Unpack[PoolingFields],
) -> Contributions:
    """Scores of `maxsim_pairs` as sums over tokens: what each takes, and what it brings.

    For pairs that someone looks at: similarities are made again, in float64 and in bounded memory. Autocast passes by.

    Args:
        documents: as in `maxsim`; of (n_queries, K, L, D) each query with its own, without pairs.
        direction: whose tokens take their best, as in `maxsim`, and bring what they find.
        pooling: of the maxima. "sum", "avg", "softmax", "topk": each brings its own, or its part of it. "max": the
            token of the largest brings all, of equals the first. "lse": its weight's part of the score.
        all others: as in `maxsim_pairs`; no item may be empty.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim_pairs`.
    """
    lengths, masks = (query_lengths, document_lengths), (query_mask, document_mask)
    options = _options(direction, pooling, normalize, fields)
    call = call_of(queries, documents, lengths, masks, None, pairs, diagonal=True)
    with torch.no_grad(), torch.autocast(call.values.device.type, enabled=False):
        return Contributions(*maxsim_contributions(call, options, backend))


@overload
def retrieve(
    queries: Features, documents: Features, query_lengths: Lengths = None, document_lengths: Lengths = None, *, k: int,
    query_mask: Array | None = None, document_mask: Array | None = None, direction: str = "q2d", pooling: str = "sum",
    normalize: bool = False, empty_score: float | None = None, largest: bool = True,
    candidates: Array | Sequence[Array | Sequence[int]] | None = None, return_alignment: Literal[False] = False,
    backend: str | None = None, progress: Progress | None = None, **fields: Unpack[PoolingFields],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def retrieve(
    queries: Features, documents: Features, query_lengths: Lengths = None, document_lengths: Lengths = None, *, k: int,
    query_mask: Array | None = None, document_mask: Array | None = None, direction: str = "q2d", pooling: str = "sum",
    normalize: bool = False, empty_score: float | None = None, largest: bool = True,
    candidates: Array | Sequence[Array | Sequence[int]] | None = None, return_alignment: Literal[True],
    backend: str | None = None, progress: Progress | None = None, **fields: Unpack[PoolingFields],
) -> Retrieved: ...  # fmt: skip


def retrieve(
    queries: Features,
    documents: Features,
    query_lengths: Lengths = None,
    document_lengths: Lengths = None,
    *,
    k: int,
    query_mask: Array | None = None,
    document_mask: Array | None = None,
    direction: str = "q2d",
    pooling: str = "sum",
    normalize: bool = False,
    empty_score: float | None = None,
    largest: bool = True,
    candidates: Array | Sequence[Array | Sequence[int]] | None = None,
    return_alignment: bool = False,
    backend: str | None = None,
    progress: Progress | None = None,
    **fields: Unpack[PoolingFields],
) -> tuple[Tensor, Tensor] | Retrieved:
    """The k best documents for every query by `maxsim`, or the k worst, without the matrix of all scores.

    Args:
        candidates: score these documents alone: (n_queries, K) integers, -1 for none, or a list of as many places as
            each query has. One that a query has twice counts once.
        return_alignment: whether to tell of what the scores are made, too: which token each token takes. Only documents
            that were found are read for it, once more.
        k: how many to retrieve, at least 1; all documents where there are fewer.
        largest: True: those of the greatest scores, the greatest first; False: of the smallest, the smallest first.
        queries, documents, query_lengths, document_lengths, query_mask, document_mask: as in `maxsim`; documents are
            for all queries. NumPy arrays of documents may be larger than memory if they are memory-mapped: they are
            read once, from front to back.
        direction, pooling, **fields, normalize, empty_score, backend: as in `maxsim`.
        progress: called with (documents scored so far, all of them) now and then, of candidates with (queries done, all
            of them); what it raises ends the search.

    Returns:
        (values, indices), both (n_queries, min(k, n_documents)), in that order: scores without gradient, and int64
        places among the documents. Of equal scores the lower index comes first; NaN comes before all numbers, also
        before the smallest. Of candidates (n_queries, min(k, K)); where a query has fewer the last indices are -1.
        With return_alignment `Retrieved`, these two and the alignment of each query with what it found.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim`, and where k, a flag or progress is none.
    """
    queries, query_mask = several(queries, query_mask, QUERIES)
    documents, document_mask = several(documents, document_mask, DOCUMENTS)
    options = _options(direction, pooling, normalize, fields)
    check_flag("largest", largest)
    check_flag("return_alignment", return_alignment)
    if return_alignment:
        choose("context_pooling beside return_alignment", options.context_pooling, ("max",))

    def sides_of(query: Any, document: Any) -> tuple[Ragged, Ragged]:
        return checked_sides(query[0], document[0], (query[1], document[1]), (query[2], document[2]), empty_score)

    def scores_of(sides: tuple[Ragged, Ragged], pairs: Tensor | None) -> Tensor:
        call = Call(*sides, None, empty_score) if pairs is None else listed_pairs(sides, pairs, empty_score)
        scores = call.as_scores(score_call(call, options, backend))
        # The worst are the best of the negated scores: only a sign changes, no bit of a value, and no order of ties.
        return scores if largest else -scores

    if candidates is not None or return_alignment:
        device, empty = device_of(queries, documents), empty_score is not None
        inputs = (queries, query_lengths, query_mask), (documents, document_lengths, document_mask)
        query_blocks, corpus = (
            FeatureBlocks.of(*side, names=names, device=device, empty=empty)
            for side, names in zip(inputs, NAMES, strict=True)
        )
    if candidates is not None:

        def score_pairs(query: Any, document: Any, pairs: Tensor, /) -> Tensor:
            return scores_of(sides_of(query, document), pairs.to(device))

        candidate_rows = as_candidates(candidates, "candidates")
        values, indices = candidate_topk(score_pairs, query_blocks, corpus, candidate_rows, k=k, progress=progress)
        values, indices = values.to(device), indices.to(device)
    else:

        def score(
            query: Features, document: Features, lengths: Lengths, corpus_lengths: Lengths, *,
            region_mask: Array | None = None, word_mask: Array | None = None,
        ) -> Tensor:  # fmt: skip
            return scores_of(sides_of((query, lengths, region_mask), (document, corpus_lengths, word_mask)), None)

        values, indices = feature_topk(
            score, queries, documents, query_lengths, document_lengths, k=k, query="image", region_mask=query_mask,
            word_mask=document_mask, empty=empty_score is not None, progress=progress, names=NAMES,
        )  # fmt: skip
    values = values if largest else -values
    if not return_alignment:
        return values, indices
    return Retrieved(values, indices, *maxsim_alignment(query_blocks, corpus, indices.cpu().numpy(), options, sides_of))


def _options(direction: str, pooling: str, normalize: bool, fields: PoolingFields) -> MaxSimOptions:
    choose("direction", direction, tuple(DIRECTIONS))
    arguments = {"direction": DIRECTIONS[direction], "pooling": pooling, "normalize": normalize}
    return checked(MaxSimOptions, None, {**arguments, **fields})
