"""sentence-transformers' late interaction on crossret's kernels: similarities, and scores that its losses call.

Arguments and results are those of sentence-transformers 6, except on purpose:

| | sentence-transformers | here |
|---|---|---|
| bfloat16 and float16 similarities | rounded to that before the maximum | float32 |
| `chunk_elements` | bounds what is built for a call | bounds only what moves to `device` at once: nothing is built |
| masks of other numbers than 0 and 1 | weights of the queries' maxima | an error |
| a mask of True where a list's item has no row | a token of zeros, which can win | no token |
| a document without tokens | a warning, then −1e9 | −1e9 |
| scores of float64 | of maxima rounded to float32; float32 with a mask, unless that is float64 | float64 |

Without a mask, rows of zeros of padded embeddings are padding and all rows of lists are tokens, as there; scores are
float32 of all other dtypes, and on the documents' device. The functions named colbert_… are the losses'
`similarity_fct`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from crossret.compat.patching import Patch
from crossret.compat.sides import (
    Embeddings,
    Mask,
    Side,
    as_embeddings,
    as_side,
    check_dimensions,
    parts,
    score,
    together,
)
from crossret_kernels.late_interaction import maxsim as score_all
from crossret_kernels.late_interaction import maxsim_pairs as score_pairs

__all__ = [
    "colbert_kd_scores",
    "colbert_scores",
    "colbert_scores_pairwise",
    "maxsim",
    "maxsim_pairwise",
    "mean_maxsim",
    "mean_maxsim_pairwise",
    "patch",
    "unpatch",
]

NAMES = "a", "b", "a_mask", "b_mask"
LOSSES_NAMES = "queries_embeddings", "documents_embeddings", "queries_mask", "documents_mask"
EMPTY_DOCUMENT = -1e9
MOVED_ELEMENTS = 100_000_000


def maxsim(
    a: Embeddings,
    b: Embeddings,
    a_mask: Mask = None,
    b_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
    device: str | torch.device | None = None,
) -> Tensor:
    """MaxSim of every query with every document.

    Args:
        a: queries: (n_queries, Q, D), padded; or a list of (Q_i, D); or (Q, D), one query. Tensors or arrays; integers
            become float32.
        b: documents, the same: (n_documents, L, D) and so on.
        a_mask: (n_queries, Q) or, of a list, as wide as its longest; (Q,) of one query; or a list of masks (Q_i,).
            bool or 0 and 1. None: rows of zeros are padding, of lists all rows are tokens.
        b_mask: likewise for documents.
        chunk_elements: numbers of documents that are moved to `device` at once, where they lie elsewhere; at least one
            document is. None: 100 million.
        length_normalize: whether to divide scores by the queries' numbers of tokens.
        device: where to score; None: where the documents are.

    Returns:
        (n_queries, n_documents), float32, float64 for float64, on the documents' device, the queries' where documents
        are arrays. A document without tokens scores −1e9 before any division.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `crossret_kernels.late_interaction.maxsim`, and for masks.
    """
    sides = _sides(a, b, a_mask, b_mask, NAMES)
    counts = len(sides[0]), len(sides[1])
    if not all(counts):
        return _no_scores(counts, *sides)
    check_dimensions(sides[1], "b", "(n_documents, L, D)")
    return _scores(score_all, *sides, chunk_elements, length_normalize, device)


def maxsim_pairwise(
    a: Embeddings,
    b: Embeddings,
    a_mask: Mask = None,
    b_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
    device: str | torch.device | None = None,
) -> Tensor:
    """MaxSim of every query with the document in its place.

    Args:
        a, b, a_mask, b_mask, chunk_elements, length_normalize, device: as in `maxsim`, as many queries as documents.

    Returns:
        (n,), as the scores of `maxsim`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim`; another number of queries than documents.
    """
    return _pairwise(a, b, a_mask, b_mask, NAMES, chunk_elements, length_normalize, device)


def mean_maxsim(
    a: Embeddings,
    b: Embeddings,
    a_mask: Mask = None,
    b_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = True,
    device: str | torch.device | None = None,
) -> Tensor:
    """`maxsim`, divided by the queries' numbers of tokens unless `length_normalize` is False."""
    return maxsim(a, b, a_mask, b_mask, chunk_elements, length_normalize, device)


def mean_maxsim_pairwise(
    a: Embeddings,
    b: Embeddings,
    a_mask: Mask = None,
    b_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = True,
    device: str | torch.device | None = None,
) -> Tensor:
    """`maxsim_pairwise`, divided by the queries' numbers of tokens unless `length_normalize` is False."""
    return maxsim_pairwise(a, b, a_mask, b_mask, chunk_elements, length_normalize, device)


def colbert_scores(
    queries_embeddings: Embeddings,
    documents_embeddings: Embeddings,
    queries_mask: Mask = None,
    documents_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
) -> Tensor:
    """MaxSim of every query with all documents of all items, for the multiple-negatives losses.

    Args:
        queries_embeddings: (n_queries, Q, D).
        documents_embeddings: (n, N, L, D), N documents of each of n items; tensors, arrays or lists of such.
        queries_mask, documents_mask: (n_queries, Q) and (n, N, L), as in `maxsim`.
        chunk_elements, length_normalize: as in `maxsim`.

    Returns:
        (n_queries, n · N), document k of item j in column j · N + k; as the scores of `maxsim`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim`.
    """
    sides = _stacks(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    return _scores(score_all, sides[0], sides[1].stacked(), chunk_elements, length_normalize)


def colbert_kd_scores(
    queries_embeddings: Embeddings,
    documents_embeddings: Embeddings,
    queries_mask: Mask = None,
    documents_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
) -> Tensor:
    """MaxSim of every query with documents of its own, for `MultiVectorDistillKLDivLoss`.

    Args:
        documents_embeddings: (n_queries, N, L, D), tensors, arrays or lists of such.
        documents_mask: (n_queries, N, L).
        queries_embeddings, queries_mask, chunk_elements, length_normalize: as in `colbert_scores`.

    Returns:
        (n_queries, N), as the scores of `maxsim`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim`.
    """
    sides = _stacks(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    return _scores(score_all, *sides, chunk_elements, length_normalize)


def colbert_scores_pairwise(
    queries_embeddings: Embeddings,
    documents_embeddings: Embeddings,
    queries_mask: Mask = None,
    documents_mask: Mask = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
) -> Tensor:
    """`maxsim_pairwise` under the names of `MultiVectorMarginMSELoss`."""
    return _pairwise(
        queries_embeddings, documents_embeddings, queries_mask, documents_mask, LOSSES_NAMES, chunk_elements,
        length_normalize,
    )  # fmt: skip


def _pairwise(
    queries: Embeddings,
    documents: Embeddings,
    query_mask: Mask,
    document_mask: Mask,
    names: tuple[str, str, str, str],
    chunk_elements: int | None,
    length_normalize: bool,
    device: str | torch.device | None = None,
) -> Tensor:
    sides = _sides(queries, documents, query_mask, document_mask, names)
    counts = len(sides[0]), len(sides[1])
    if counts[0] != counts[1]:
        both = f"{names[0]} and {names[1]} must hold the same number of items to score as pairs"
        raise ValueError(f"{both}, got {counts[0]} and {counts[1]}")
    if not counts[0]:
        return _no_scores(counts[:1], *sides)
    return _scores(score_pairs, *sides, chunk_elements, length_normalize, device)


def _scores(
    of: Callable[..., Tensor],
    queries: Side,
    documents: Side,
    chunk_elements: int | None,
    length_normalize: bool,
    device: str | torch.device | None = None,
) -> Tensor:
    home = documents.device
    there = home if device is None else torch.device(device)
    runs = []
    for start, stop in parts(len(documents), len(documents) if there == home else _moved(documents, chunk_elements)):
        own = queries.part(start, stop, there) if of is score_pairs else queries.part(0, len(queries), there)
        runs.append(score(of, own, documents.part(start, stop, there)).to(home))
    scores = runs[0] if len(runs) == 1 else torch.cat(runs, -1)
    scores = scores.masked_fill(documents.tokens() == 0, EMPTY_DOCUMENT)
    if not length_normalize:
        return scores
    tokens = queries.tokens().clamp(min=1).to(home)
    return scores / (tokens if scores.dim() == 1 else tokens[:, None])


def _sides(
    queries: Embeddings, documents: Embeddings, query_mask: Mask, document_mask: Mask, names: tuple[str, str, str, str]
) -> tuple[Side, Side]:
    """Both, on the documents' device or, where these are arrays, the queries'; `names` of features and masks."""
    sides = (
        as_side(_several(queries, names[0]), query_mask, (names[0], names[2]), zeros_of_padded=True),
        as_side(_several(documents, names[1]), document_mask, (names[1], names[3]), zeros_of_padded=True),
    )
    if _device(documents) is None and (device := _device(queries)) is not None:
        return sides[0], sides[1].part(0, len(sides[1]), device)
    return sides


def _stacks(queries: Embeddings, documents: Embeddings, query_mask: Mask, document_mask: Mask) -> tuple[Side, Side]:
    """Queries (n, Q, D), and documents (n, N, L, D), which may be listed, with their masks."""
    masks = [
        None if mask is None else together(mask, name)
        for mask, name in zip((query_mask, document_mask), LOSSES_NAMES[2:], strict=True)
    ]
    stacked = together(queries, LOSSES_NAMES[0]), together(documents, LOSSES_NAMES[1])
    sides = _sides(*stacked, masks[0], masks[1], LOSSES_NAMES)
    check_dimensions(sides[1], LOSSES_NAMES[1], "(n, N, L, D)")
    return sides


def _several(embeddings: Embeddings, name: str) -> Embeddings:
    """One item, (L, D), as the only one of several."""
    if not isinstance(embeddings, (Tensor, np.ndarray)):
        return embeddings
    features = as_embeddings(embeddings, name)
    return features[None] if features.dim() == 2 else features


def _no_scores(shape: tuple[int, ...], queries: Side, documents: Side) -> Tensor:
    """Zeros of scores' dtype, on the device of the documents, or of the queries where documents are an empty list."""
    for side in (documents, queries):
        if isinstance(side.features, Tensor) or side.features:
            some = side.features if isinstance(side.features, Tensor) else side.features[0]
            return some.new_zeros(shape, dtype=torch.promote_types(some.dtype, torch.float32))
    return torch.zeros(shape)


def _device(embeddings: Embeddings) -> torch.device | None:
    """Device of tensors; arrays have none."""
    first = embeddings[0] if isinstance(embeddings, (list, tuple)) and embeddings else embeddings
    return first.device if isinstance(first, Tensor) else None


def _moved(documents: Side, chunk_elements: int | None) -> int:
    """How many documents move to another device at once."""
    rows = (
        max(len(item) for item in documents.features)
        if isinstance(documents.features, list)
        else (documents.features.size(-2))
    )
    width = documents.features[0].size(-1)
    return max(1, (MOVED_ELEMENTS if chunk_elements is None else chunk_elements) // max(1, rows * width))


_PATCH = Patch(
    "sentence_transformers",
    "sentence-transformers>=6",
    "pip install 'crossret[sentence-transformers]'",
    {
        "sentence_transformers.util.similarity:maxsim": maxsim,
        "sentence_transformers.util.similarity:maxsim_pairwise": maxsim_pairwise,
        "sentence_transformers.util.similarity:mean_maxsim": mean_maxsim,
        "sentence_transformers.util.similarity:mean_maxsim_pairwise": mean_maxsim_pairwise,
        "sentence_transformers.multi_vector_encoder.scoring.colbert:colbert_scores": colbert_scores,
        "sentence_transformers.multi_vector_encoder.scoring.colbert:colbert_kd_scores": colbert_kd_scores,
        "sentence_transformers.multi_vector_encoder.scoring.colbert:colbert_scores_pairwise": colbert_scores_pairwise,
    },
)
patch, unpatch = _PATCH.patch, _PATCH.unpatch
