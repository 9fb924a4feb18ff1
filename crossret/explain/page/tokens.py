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

from crossret.explain.page.contents import Page, Pair, Part, Result, Way
from crossret.explain.page.pairs import canvas_of
from crossret_kernels import late_interaction

NOTES = [
    "Brightness is the similarity of a token of the query with one of the document, above the mean, on one scale for "
    "all documents of the page. Red is the largest.",
    "The score is the sum of what each token of the query finds at most. Shares add up to it.",
]


@dataclass(frozen=True)
class Document:
    """A document as late interaction reads it: vectors of the patches of a picture, or of the tokens of a text.

    Attributes:
        vectors: (L, D) floating point.
        name: what it is called.
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
    """A query with each of some documents, in their order.

    Args:
        query: its text.
        tokens: Q texts, what its vectors are of.
        vectors: (Q, D) floating point.
        documents: best first.
        pooling, normalize: as ``crossret_kernels.late_interaction.explain``.

    Raises:
        OSError: a picture cannot be read.
        ValueError, TypeError: as ``explain``; a query or document has not as many tokens, or boxes, as vectors; a
            picture is malformed, or its patches have no boxes and are no square grid.
    """
    _check(len(tokens), len(vectors), "query")
    this, own = object(), torch.as_tensor(vectors)
    others = [torch.as_tensor(document.vectors) for document in documents]
    listed = torch.tensor([[0, number] for number in range(len(documents))])
    found = late_interaction.explain([own], others, pairs=listed, pooling=pooling, normalize=normalize)
    results = [
        Result(rank, float(found.scores[rank - 1]), document.name, picture=document.picture, key=(this, rank - 1))
        for rank, document in enumerate(documents, start=1)
    ]
    pairs = []
    for number, (document, rows) in enumerate(zip(documents, others, strict=True)):
        place = f"documents[{number}]"
        if document.tokens is not None:
            _check(len(document.tokens), len(rows), place)
        if document.boxes is not None and document.boxes.shape != (len(rows), 4):
            raise ValueError(f"{place}: boxes of shape {document.boxes.shape} for {len(rows)} vectors")
        one, other = own.double(), rows.double()
        if normalize:
            one, other = (torch.nn.functional.normalize(side, dim=1) for side in (one, other))
        similarities = (one @ other.T).float().cpu().numpy()
        way = Way("similarity", "query tokens and the document", similarities, unit="similarity")
        pairs.append(
            Pair(
                query,
                tuple(tokens),
                tuple(document.tokens)
                if document.tokens is not None
                else canvas_of(document.picture, document.boxes, len(rows)),
                float(found.scores[number]),
                (way,),
                (Part("tokens of the query", "words", found.contributions[number].double().cpu().numpy()),),
                f"{number + 1}. {document.name}",
                found={"Found for this query": results} if len(documents) > 1 else {},
                key=(this, number),
                is_other=number > 0,
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
    return Page("Why these documents were found", pairs, notes=NOTES)


def _check(tokens: int, vectors: int, place: str) -> None:
    if tokens != vectors:
        raise ValueError(f"{place}: {tokens} tokens, but {vectors} vectors")
