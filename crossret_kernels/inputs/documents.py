"""Sides and pairs of late interaction, checked: queries in the images' place, documents in the captions'."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.inputs.call import Call, Features, Lengths, as_sides
from crossret_kernels.inputs.pairs import Pairs, as_pairs
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, SideNames, check_dense

QUERIES = SideNames("queries", "query_lengths", "query_mask", "query")
DOCUMENTS = SideNames("documents", "document_lengths", "document_mask", "document")
NAMES = QUERIES, DOCUMENTS


def checked_sides(
    queries: Features,
    documents: Features,
    lengths: tuple[Lengths, Lengths],
    masks: tuple[Array | None, Array | None],
    empty_score: float | None,
) -> tuple[Ragged, Ragged]:
    """Both, checked."""
    queries, query_mask = several(queries, masks[0], QUERIES)
    documents, document_mask = several(documents, masks[1], DOCUMENTS)
    return as_sides(queries, documents, *lengths, query_mask, document_mask, empty_score, NAMES)


def diagonal_pairs(queries: Ragged, documents: Ragged, empty_score: float | None) -> Call:
    """Each query with the document in its place."""
    if len(queries) != len(documents):
        counts = f"{len(queries)} queries and {len(documents)} documents"
        raise ValueError(f"{counts} make no pairs: pass pairs, or as many of both")
    device = queries.values.device
    pairs = torch.arange(len(queries), device=device)[:, None].expand(-1, 2)
    return Call(queries, documents, Pairs(pairs, None, device, pairs), empty_score)


def call_of(
    queries: Features, documents: Features, lengths: tuple[Lengths, Lengths], masks: tuple[Array | None, Array | None],
    empty_score: float | None, pairs: Array | None = None, diagonal: bool = False,
) -> Call:  # fmt: skip
    """Listed pairs, checked; of None every query with every document or, of the `diagonal`, with the one in its
    place; of documents (n_queries, K, L, D) with its K documents as candidates.
    """
    if pairs is not None or dimensions(documents) != 4:
        sides = checked_sides(queries, documents, lengths, masks, empty_score)
        if pairs is not None:
            return listed_pairs(sides, pairs, empty_score)
        return diagonal_pairs(*sides, empty_score) if diagonal else Call(*sides, None, empty_score)
    shape, documents, flat_mask, flat_lengths = _flat(documents, masks[1], lengths[1])
    sides = checked_sides(queries, documents, (lengths[0], flat_lengths), (masks[0], flat_mask), empty_score)
    if shape[0] != len(sides[0]):
        raise ValueError(
            f"documents of {shape[0]} queries, (n_queries, K, L, D), but there are {len(sides[0])} queries"
        )
    candidates = Pairs(torch.arange(shape[0] * shape[1]).view(shape), "image", sides[0].values.device)
    return Call(*sides, candidates, empty_score)


def listed_pairs(sides: tuple[Ragged, Ragged], pairs: Array, empty_score: float | None) -> Call:
    """Listed pairs (P, 2), checked."""
    return Call(*sides, as_pairs(pairs, None, None, "image", *sides, (QUERIES.item, DOCUMENTS.item)), empty_score)


def dimensions(features: Any) -> int | None:
    """Dimensions of a tensor or an array; None of packed or listed ones."""
    return features.ndim if isinstance(features, (Tensor, np.ndarray)) else None


def several(features: Features, mask: Array | None, names: SideNames) -> tuple[Features, Array | None]:
    """One item, (L, D), as the only one of several."""
    if dimensions(features) != 2:
        return features, mask
    if isinstance(features, Tensor):
        check_dense(features, names.features)
    return features[None], mask[None] if dimensions(mask) == 1 else mask  # type: ignore[index,call-overload]


def weights_of(features: Features, weights: Any, name: str) -> Any:
    """Weights of one item, (L,), and of documents of each query, (n_queries, K, L), as those of several items."""
    if dimensions(features) == 2 and dimensions(weights) == 1:
        return weights[None]
    if dimensions(features) != 4 or weights is None:
        return weights
    shape = tuple(features.shape[:3])  # type: ignore[union-attr]
    if tuple(getattr(weights, "shape", ())) != shape:
        description = f"shape {tuple(weights.shape)}" if hasattr(weights, "shape") else type(weights).__name__
        raise ValueError(f"{name} must have shape (n_queries, K, L) = {shape}, got {description}")
    return weights.reshape(-1, shape[2])


def _flat(documents: Any, mask: Any, lengths: Any) -> tuple[tuple[int, int], Any, Any, Any]:
    """(n_queries, K), and (n_queries, K, L, D) as (n_queries · K, L, D), with what tells of their rows."""
    for operand, name in zip((documents, lengths, mask), DOCUMENTS[:3], strict=True):
        if isinstance(operand, Tensor):
            check_dense(operand, name)
    n, k, longest, dim = documents.shape
    if dimensions(mask) is not None:
        if tuple(mask.shape) != (n, k, longest):  # of which another order would have as many places
            expected = f"(n_queries, K, L) = {(n, k, longest)}"
            raise ValueError(f"{DOCUMENTS.mask} must have shape {expected}, got {tuple(mask.shape)}")
        mask = mask.reshape(n * k, longest)
    if dimensions(lengths) == 2 and tuple(lengths.shape) == (n, k):
        lengths = lengths.reshape(n * k)
    return (n, k), documents.reshape(n * k, longest, dim), mask, lengths
