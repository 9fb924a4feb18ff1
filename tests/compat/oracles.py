"""What other packages' scores are, in float64 and built in full, and embeddings on which their peculiarities show."""

from __future__ import annotations

import torch
from torch import Tensor

DIM = 8


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    """Random vectors, of which about half of the similarities are negative."""
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed))


def some(*shape: int, seed: int = 0) -> Tensor:
    """A bool mask with holes, whose items have their last row at least."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., -1] = True
    return mask


def pair(query: Tensor, document: Tensor) -> Tensor:
    """MaxSim of tokens alone, (Q, D) and (L, D)."""
    return (query.double() @ document.double().T).amax(1).sum()


def every(queries: list[Tensor], documents: list[Tensor], empty: float = 0.0) -> Tensor:
    """(n_queries, n_documents) of tokens alone; `empty` of documents without any."""
    return torch.stack(
        [
            torch.stack([pair(q, d) if len(d) else torch.tensor(empty, dtype=torch.float64) for d in documents])
            for q in queries
        ]
    )


def chosen(padded: Tensor, mask: Tensor) -> list[Tensor]:
    """The tokens of padded items."""
    return [item[own] for item, own in zip(padded, mask, strict=True)]
