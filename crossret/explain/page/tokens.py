"""Late interaction on a page: which tokens of a document each token of a query is like, over a picture or a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.explain.page.contents import Canvas, Page, Pair, Part, Result, Way
from crossret.explain.page.pairs import SIMILARITIES, canvas_of, notes_of
from crossret_kernels.late_interaction import explain


@dataclass(frozen=True)
class Document:
    """A document as late interaction reads it: vectors of the patches of a picture, or of the tokens of a text.

    Attributes:
        vectors: (L, D) floating point.
        name: its name.
        tokens: L texts, what the vectors are of; None of a picture.
        picture: the file, of a picture.
        boxes: (L, 4) x0, y0, x1, y1 in its pixels; None where patches are a square grid, row by row.
    """

    vectors: Tensor | NDArray[Any]
    name: str
    tokens: Sequence[str] | None = None
    picture: Path | None = None
    boxes: NDArray[np.float32] | None = None


@torch.no_grad()
def late_interaction_pairs(
    query: str,
    tokens: Sequence[str],
    vectors: Tensor | NDArray[Any],
    documents: Sequence[Document],
    *,
    pooling: str = "sum",
    normalize: bool = False,
) -> list[Pair]:
    """A query with each of some documents, best first.

    Args:
        query: its text.
        tokens: Q texts, what its vectors are of.
        vectors: (Q, D) floating point.
        documents: at least one.
        pooling, normalize: as ``crossret_kernels.late_interaction.explain``.

    Raises:
        OSError: a picture cannot be read.
        ValueError, TypeError: as ``explain``; a query or document has not as many tokens, or boxes, as vectors; a
            picture is malformed, or its patches have no boxes and are no square grid.
    """
    if not documents:
        raise ValueError("documents: there are none")
    _check(len(tokens), len(vectors), "query")
    this, own = object(), torch.as_tensor(vectors)
    others = [torch.as_tensor(document.vectors) for document in documents]
    listed = torch.tensor([[0, number] for number in range(len(documents))])
    found = explain([own], others, pairs=listed, pooling=pooling, normalize=normalize)
    order = found.scores.argsort(descending=True, stable=True).tolist()
    results = [
        Result(
            rank + 1, float(found.scores[number]), documents[number].name, picture=documents[number].picture,
            key=(this, rank),
        )
        for rank, number in enumerate(order)
    ]  # fmt: skip
    pairs = []
    for rank, number in enumerate(order):
        document, rows = documents[number], others[number]
        one, other = own.double(), rows.double()
        if normalize:
            one, other = (torch.nn.functional.normalize(side, dim=1) for side in (one, other))
        similarities = (one @ other.T).float().cpu().numpy()
        pairs.append(
            Pair(
                query,
                tuple(tokens),
                _shown(document, len(rows), f"documents[{number}]"),
                float(found.scores[number]),
                (Way("similarity", "query tokens and the document", similarities, unit="similarity"),),
                (Part("tokens of the query", "words", found.contributions[number].double().cpu().numpy()),),
                f"{rank + 1}. {document.name}",
                found={"Found for this query": results} if len(documents) > 1 else {},
                key=(this, rank),
                is_other=rank > 0,
            )
        )
    return pairs


def late_interaction_page(
    query: str,
    tokens: Sequence[str],
    vectors: Tensor | NDArray[Any],
    documents: Sequence[Document],
    *,
    pooling: str = "sum",
    normalize: bool = False,
) -> Page:
    """A page of a query and what was found for it; arguments and errors as ``late_interaction_pairs``."""
    pairs = late_interaction_pairs(query, tokens, vectors, documents, pooling=pooling, normalize=normalize)
    return Page("Why these documents were found", pairs, notes=notes_of(pairs, SIMILARITIES))


def _shown(document: Document, vectors: int, place: str) -> Canvas | tuple[str, ...]:
    if document.tokens is not None:
        _check(len(document.tokens), vectors, place)
        return tuple(document.tokens)
    if document.boxes is not None and document.boxes.shape != (vectors, 4):
        raise ValueError(f"{place}: boxes of shape {document.boxes.shape} for {vectors} vectors")
    return canvas_of(document.picture, document.boxes, vectors)


def _check(tokens: int, vectors: int, place: str) -> None:
    if tokens != vectors:
        raise ValueError(f"{place}: {tokens} tokens, but {vectors} vectors")
