"""Attention held against the truth: which objects the captions of rendered scenes name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.data.corpus import Corpus, PrecomputedCorpus
from crossret.data.precomputed import boxes_path
from crossret.data.scenes.grounding import read_grounding
from crossret.data.scenes.layout import grounding_path, picture_path
from crossret.data.vocabulary import tokenize
from crossret.explain.photographs import draw_maps
from crossret.explain.pointing import PointingGame, pointing_answers
from crossret.explain.rows import Rows
from crossret.files.directories import occupied
from crossret.hyperparameters import ModelConfig
from crossret.models.attention import AttentionMap
from crossret.models.base import encoder_of, tokens_of
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating

_CAPTIONS = 256  # whose attention is held in memory at a time
_PICTURES = 32  # that are encoded together


@dataclass(frozen=True)
class GroundedSplit:
    """A split of rendered scenes as a model encodes it, and what is true of it.

    Attributes:
        images, captions: the encoded split.
        image_of_caption: (n_captions,) int64.
        pictures: the image files, in order.
        boxes: (n_images, R, 4) float32 x0, y0, x1, y1 of the regions in pixels.
        rows: the rows of each caption.
        objects: the boxes that each caption's words name, by row.
    """

    images: Encoded
    captions: Encoded
    image_of_caption: NDArray[np.int64]
    pictures: list[Path]
    boxes: NDArray[np.float32]
    rows: list[Rows]
    objects: list[dict[int, NDArray[np.float32]]]

    @classmethod
    def load(
        cls,
        directory: Path,
        split: str,
        corpus: PrecomputedCorpus,
        images: Encoded,
        captions: Encoded,
        config: ModelConfig,
        *,
        boxes: NDArray[np.float32] | None = None,
    ) -> GroundedSplit:
        """Add to a split, read as ``corpus`` and encoded by a model of this config, what ``render_scenes`` wrote.

        ``boxes`` are those of the regions where the data have none: of pictures, as ``boxes_of_tokens`` finds them.

        Raises:
            OSError: a file is missing or unreadable.
            ValueError: a file is malformed or of another split; names the file. As ``Rows.objects``.
        """
        data = corpus.data
        boxes = data.boxes if boxes is None else boxes
        if boxes is None:
            raise FileNotFoundError(f"{boxes_path(directory, split)}: no such file, which rendered scenes have")
        grounding_file = grounding_path(directory, split)
        grounding = read_grounding(grounding_file)
        if [truth.words for truth in grounding] != [tokenize(caption) for caption in data.captions]:
            raise ValueError(f"{grounding_file}: not the words of the captions of {split}")
        pictures = [picture_path(directory, split, image) for image in range(len(images))]
        rows = [Rows.of_corpus(config, corpus, captions.lengths, caption) for caption in range(len(captions))]
        objects = [own.objects(truth) for own, truth in zip(rows, grounding, strict=True)]
        return cls(images, captions, data.image_of_caption, pictures, boxes, rows, objects)

    def attention(self, model: Matcher, captions: NDArray[np.int64]) -> tuple[AttentionMap, ...]:
        """How the model looks at the images of these captions beside them, by rows of the encoded captions."""
        images = torch.from_numpy(self.image_of_caption[captions])
        return model.attention(self.images[images], self.captions[torch.from_numpy(captions)])

    def regions(self, captions: NDArray[np.int64], attention: AttentionMap) -> NDArray[np.float32]:
        """(P, R, 4): boxes of the regions that the map of these captions is over, the image's first where not all."""
        return self.boxes[self.image_of_caption[captions], : attention.weights.shape[2]]


def boxes_of_tokens(model: Matcher, corpus: Corpus) -> NDArray[np.float32] | None:
    """(n_images, R, 4) boxes of the tokens that a model's encoder makes of pictures, R the most, zeros behind those of
    a picture that has fewer; None of a model that reads no pictures.
    """
    if encoder_of(model) is None:
        return None
    parts: list[NDArray[np.float32]] = []
    with evaluating(model):
        for regions in corpus.image_batches(_PICTURES):
            boxes = tokens_of(model, regions).boxes
            assert boxes is not None
            parts += list(boxes.cpu().numpy())
    padded = np.zeros((len(parts), max(map(len, parts)), 4), np.float32)
    for target, part in zip(padded, parts, strict=True):
        target[: len(part)] = part
    return padded


def play_pointing_game(model: Matcher, split: GroundedSplit) -> list[PointingGame]:
    """The pointing game of every attention map, in the model's order; none of a model that does not attend.

    A map over words has one entry, of all nouns; any other has one a head or step and, of several, one of all of them.

    Raises:
        ValueError: no caption names an object.
    """
    if not any(split.objects):
        raise ValueError("no caption names an object: there is nothing to point at")
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    for start in range(0, len(split.rows), _CAPTIONS):
        captions = np.arange(start, min(start + _CAPTIONS, len(split.rows)))
        for attention in split.attention(model, captions):
            for query, answers in _ask(split, captions, attention):
                total = sums.setdefault((attention.name, query), np.zeros(5))
                total += [len(answers), *answers.sum(axis=0)]
    return [
        PointingGame(name, query, int(asked), *(right / asked).tolist())
        for (name, query), (asked, *right) in ((key, (total[0], *total[1:])) for key, total in sums.items())
    ]


def _ask(
    split: GroundedSplit, captions: NDArray[np.int64], attention: AttentionMap
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Answers (n, 4) of these captions' questions to a map by query, as ``pointing_answers`` has them."""
    strongest, regions = attention.strongest().cpu().numpy(), split.regions(captions, attention)
    named = [split.objects[caption] for caption in captions]
    if attention.queries is None:
        nouns = [(number, row) for number, objects in enumerate(named) for row in objects]
        places = [(number, split.rows[captions[number]].first_token(row)) for number, row in nouns]
        rows, tokens = np.array(places, dtype=np.int64).reshape(-1, 2).T
        boxes = np.array([named[number][row] for number, row in nouns], np.float32).reshape(-1, 1, 4)
        yield "nouns", pointing_answers(strongest[rows, tokens][:, None], regions[rows], boxes)[:, 0]
        return
    rows = np.array([row for row, objects in enumerate(named) if objects], np.int64)
    boxes = np.full((len(rows), max((len(named[row]) for row in rows), default=0), 4), np.nan, np.float32)
    for target, row in zip(boxes, rows, strict=True):
        target[: len(named[row])] = list(named[row].values())
    answers = pointing_answers(strongest[rows], regions[rows], boxes)
    for number, query in enumerate(attention.queries):
        yield query, answers[:, number]
    if len(attention.queries) > 1:
        yield "all", answers.reshape(-1, 4)


def spaced_captions(split: GroundedSplit, count: int) -> list[int]:
    """The captions of evenly spaced images, of each the one that names most objects: not picked by success.

    Args:
        count: how many; all images give one where there are fewer.
    """
    chosen = []
    for image in np.linspace(0, len(split.images) - 1, min(count, len(split.images))).astype(int):
        own = np.flatnonzero(split.image_of_caption == image)
        chosen.append(max(own.tolist(), key=lambda caption: len(split.objects[caption])))
    return chosen


def draw_captions(
    directory: str | os.PathLike[str], model: Matcher, split: GroundedSplit, captions: Sequence[int]
) -> list[str]:
    """Write the pictures of some captions' attention over their images; see ``attention_sheet``.

    Args:
        directory: made if absent.
        captions: their indices.

    Returns:
        The names of the files in the directory: ``{caption:05d}.png``, and of a model with several maps
        ``{caption:05d}-{map}.png`` of each.

    Raises:
        OSError: an image's file is missing, or a picture cannot be written.
        ValueError: an image's file is malformed; names it.
    """
    directory = Path(directory)
    names = []
    with occupied(directory):
        for caption in captions:
            image = split.image_of_caption[caption]
            rows, output = split.rows[caption], directory / f"{caption:05d}.png"
            maps = rows.merged(split.attention(model, np.array([caption])))
            shown = rows, split.objects[caption], split.boxes[image], split.pictures[image]
            drawn = draw_maps(maps, *shown, output)
            names += [path.name for path in drawn]
    return names
