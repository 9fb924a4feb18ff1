"""Queries and documents of late interaction in every layout, and their scores in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DIM = 8
FLOATS = torch.float32, torch.float64
GENERATOR = torch.Generator().manual_seed(0)
QUERIES, DOCUMENTS = (torch.randn(n, rows, DIM, generator=GENERATOR) for n, rows in ((3, 5), (4, 6)))
QUERY_MASK = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()
DOCUMENT_MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]).bool()


def oracle(queries: Tensor, documents: Tensor, query_mask: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """(n_queries, n_documents) in float64, everything materialised."""
    similarities = torch.einsum("aid,bjd->abij", queries.double(), documents.double())
    if mask is not None:
        similarities = similarities.masked_fill(~mask[None, :, None], -torch.inf)
    best = similarities.amax(3)
    return (best if query_mask is None else best.masked_fill(~query_mask[:, None], 0)).sum(2)


def items(features: Tensor, mask: Tensor) -> list[Tensor]:
    return [item[own] for item, own in zip(features, mask, strict=True)]


def packed(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return features[mask], torch.tensor([0, *mask.sum(1).tolist()]).cumsum(0)


EXPECTED = oracle(QUERIES, DOCUMENTS, QUERY_MASK, DOCUMENT_MASK)
BACKWARD = oracle(DOCUMENTS, QUERIES, DOCUMENT_MASK, QUERY_MASK)
MASKED = {"queries": QUERIES, "documents": DOCUMENTS, "query_mask": QUERY_MASK, "document_mask": DOCUMENT_MASK}
LAYOUTS: dict[str, dict[str, Any]] = {
    "masks": MASKED,
    "numpy": {name: side.numpy() for name, side in MASKED.items()},
    "lists": {"queries": items(QUERIES, QUERY_MASK), "documents": items(DOCUMENTS, DOCUMENT_MASK)},
    "packed": {"queries": packed(QUERIES, QUERY_MASK), "documents": packed(DOCUMENTS, DOCUMENT_MASK)},
    "a list and masks": {
        "queries": items(QUERIES, QUERY_MASK), "documents": DOCUMENTS, "document_mask": DOCUMENT_MASK
    },
}  # fmt: skip
