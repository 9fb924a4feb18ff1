"""A page of what an index of pictures found: why these pictures, for each caption."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from crossret.data.batches import Regions
from crossret.data.prepared import Prepared
from crossret.encoders import PictureTokens
from crossret.explain.page.contents import Page, Pair, Result
from crossret.explain.page.pairs import SIMILARITIES, UNSEEN, UNSHARED, notes_of
from crossret.explain.page.tokens import Document, late_interaction_pairs
from crossret.models.protocol import evaluating
from crossret.picture_index.index import PictureIndex
from crossret.progress import Progress


def index_page(
    index: PictureIndex, captions: Sequence[str], indices: Sequence[Sequence[int]], *, progress: Progress | None = None
) -> Page:
    """Explain the pictures that were found for captions. They are encoded again: the index knows no boxes.

    Args:
        index: the index that was searched.
        captions: the queries.
        indices: pictures found, by caption, best first, as ``Found.indices``; -1 is none.
        progress: called with (captions explained, all of them).

    Raises:
        OSError: a picture cannot be read any more. ValueError: it is malformed, or the encoder cannot be loaded.
    """
    reader = index.picture_encoder()
    encoder = PictureTokens(reader).eval()
    pairs: list[Pair] = []
    for number, (caption, row) in enumerate(zip(captions, indices, strict=True), start=1):
        found = [item for item in row if item >= 0]
        if index.retriever is None:
            pairs += _by_tokens(index, encoder, caption, found)
        else:
            pairs += _by_model(index, encoder, caption, found)
        if progress is not None:
            progress(number, len(captions))
    name = Path(reader.name).name if os.path.isdir(reader.name) else reader.name
    facts = [("index", f"{index.directory.name}: {len(index):,} pictures"), ("encoder", name)]
    notes = notes_of(pairs, SIMILARITIES) if index.retriever is None else notes_of(pairs)
    return Page("Why these pictures were found", pairs, facts, unseen=UNSEEN, unshared=UNSHARED, notes=notes)


def _by_model(index: PictureIndex, encoder: PictureTokens, caption: str, found: Sequence[int]) -> list[Pair]:
    retriever = index.retriever
    assert retriever is not None
    explained = []
    for item in found:
        regions, boxes = _regions(index, encoder, item)
        with evaluating(retriever.model):
            image = retriever.model.encode_images(**regions.on(retriever.device))
        explained.append(retriever.explain(image, caption, boxes=boxes))
    results = _results(index, found, [explanation.score for explanation in explained])
    return [
        explanation.pair(
            index.pictures[item],
            about=f"{rank + 1}. {index.pictures[item].name}",
            found={"Found for this caption": results},
            key=results[rank].key,
            is_other=rank > 0,
        )
        for rank, (item, explanation) in enumerate(zip(found, explained, strict=True))
    ]


def _by_tokens(index: PictureIndex, encoder: PictureTokens, caption: str, found: Sequence[int]) -> list[Pair]:
    vectors, words = index.text_encoder().encode_and_spell([caption])
    documents = []
    for item in found:
        (regions, boxes), path = _regions(index, encoder, item), index.pictures[item]
        documents.append(Document(regions.features[0].float().cpu(), path.name, picture=path, boxes=boxes))
    return late_interaction_pairs(caption, words[0], vectors.values.float().cpu(), documents)


@torch.no_grad()
def _regions(index: PictureIndex, encoder: PictureTokens, item: int) -> tuple[Regions, Any]:
    """Regions of a picture, and their boxes (R, 4) float32, an array."""
    made: Regions = encoder(Prepared([encoder.reader.prepare_file(index.pictures[item])]))
    assert made.boxes is not None
    return made, made.boxes[0].cpu().numpy()


def _results(index: PictureIndex, found: Sequence[int], scores: Sequence[float]) -> list[Result]:
    this, paths = object(), [index.pictures[item] for item in found]
    return [
        Result(rank, score, path.name, picture=path, key=(this, rank))
        for rank, (path, score) in enumerate(zip(paths, scores, strict=True), start=1)
    ]
