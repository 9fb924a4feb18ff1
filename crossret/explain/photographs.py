"""Attention over a user's own pictures: what a model looks at beside a caption, and the sheet that shows it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.data.corpus import PrecomputedCorpus
from crossret.data.pictures import find_pictures, read_picture
from crossret.data.scenes.grounding import Grounding
from crossret.data.vocabulary import tokenize
from crossret.explain.pictures import Panel, draw_attention
from crossret.explain.pointing import pointing_answers
from crossret.files.directories import occupied
from crossret.models.attention import AttentionMap
from crossret.models.base import tokens_of
from crossret.models.contributions import ScoreShares
from crossret.models.protocol import Matcher
from crossret.search.items import evaluating


@dataclass(frozen=True)
class Explanation:
    """What a model looks at in one image beside one caption.

    Attributes:
        caption: the caption.
        maps: the model's attention, one entry a way of looking, each of one pair; word 0 is <start>.
        boxes: (R, 4) float32 x0, y0, x1, y1 of the regions in pixels; None where they are a grid.
        max_words: how many words the model reads; None is all.
        score: the pair's; None where it was not asked for.
        contributions: what the score is the sum of, of one pair as the maps are; word 0 is <start> here, too. None
            where the model's score is no sum (VSE++, MHSAN, HAN's global matching), or was not asked for.
    """

    caption: str
    maps: tuple[AttentionMap, ...]
    boxes: NDArray[np.float32] | None = None
    max_words: int | None = None
    score: float | None = None
    contributions: ScoreShares | None = None

    @property
    def words(self) -> list[str]:
        """The caption's words, as the model reads them."""
        return tokenize(self.caption)[: self.max_words]

    def draw(self, picture: str | os.PathLike[str], output: str | os.PathLike[str]) -> list[Path]:
        """Draw the attention over the picture, as SCAN Fig. 4.

        Args:
            picture: the image's file.
            output: the PNG to write; of a model with several maps their names are put behind its own, ``dog-t2i.png``.

        Returns:
            The files, one a map.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: the picture is malformed; or the regions have no boxes and are no grid, a square number of them.
        """
        boxes = self.boxes
        if boxes is None:
            count = max((attention.weights.shape[2] for attention in self.maps), default=0)
            boxes = grid_boxes(count, *read_picture(Path(picture)).size)
        return draw_maps(self.maps, Grounding(self.words, {}), boxes, Path(picture), Path(output))


def draw_maps(
    maps: Sequence[AttentionMap], truth: Grounding, boxes: NDArray[np.float32], picture: Path, output: Path
) -> list[Path]:
    """Draw what a model looks at in one picture, as ``Explanation.draw``, with the objects that the caption names."""
    pixels, written = np.asarray(read_picture(picture)), []
    for attention in maps:
        own = boxes[: attention.weights.shape[2]]
        name = f"{output.stem}-{attention.name}{output.suffix}" if len(maps) > 1 else output.name
        written.append(output.with_name(name))
        draw_attention(written[-1], pixels, own, *panels_of(attention, truth, own))
    return written


def draw_photographs(
    directory: str | os.PathLike[str],
    model: Matcher,
    corpus: PrecomputedCorpus,
    pictures: str | os.PathLike[str],
    captions: Sequence[int],
) -> list[str]:
    """Write the pictures of some captions' attention over their images' photographs; see ``Explanation.draw``.

    Args:
        directory: made if absent.
        model: any that attends over regions.
        corpus: the images, with names, and the captions.
        pictures: the directory of the photographs.
        captions: their indices.

    Returns:
        The names of the files in the directory, ``{caption:05d}.png``; none of a model that does not attend.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the images have no names, or as ``find_pictures`` and ``Explanation.draw``.
    """
    data, chosen = corpus.data, np.asarray(captions, np.int64)
    if data.ids is None:
        raise ValueError(f"{data.name}: its images have no names, SPLIT_ids.txt, by which their pictures are found")
    owners = data.image_of_caption[chosen]
    photographs = find_pictures(pictures, [data.ids[image] for image in owners])
    device = next(model.parameters()).device
    names: list[str] = []
    with occupied(directory), evaluating(model):
        batch = corpus.batch(captions)
        regions = tokens_of(model, corpus.regions(owners))
        counts = [data.n_regions] * len(owners) if regions.lengths is None else regions.lengths.tolist()
        images = model.encode_images(**regions.on(device))
        encoded = model.encode_captions(batch.tokens.to(device), batch.lengths.to(device))
        for row, (caption, photograph) in enumerate(zip(captions, photographs, strict=True)):
            found = model.attention(images[row : row + 1], encoded[row : row + 1])
            maps = tuple(attention.over_first(counts[row]) for attention in found)
            boxes = None if regions.boxes is None else regions.boxes[row, : counts[row]].cpu().numpy()
            explanation = Explanation(data.captions[caption], maps, boxes, model.config.max_words)
            written = explanation.draw(photograph, Path(directory) / f"{caption:05d}.png")
            names += [path.name for path in written]
    return names


def grid_boxes(count: int, width: int, height: int) -> NDArray[np.float32]:
    """(count, 4) boxes of the cells of a square grid over an image, row by row, as a feature map has them.

    Raises:
        ValueError: ``count`` is no square number.
    """
    side = math.isqrt(count)
    if side * side != count:
        raise ValueError(f"boxes: {count} regions are no square grid; pass the boxes of the regions")
    x, y = np.linspace(0, width, side + 1), np.linspace(0, height, side + 1)
    left, top = np.tile(x[:-1], side), np.repeat(y[:-1], side)
    return np.stack([left, top, np.tile(x[1:], side), np.repeat(y[1:], side)], 1).astype(np.float32)


def panels_of(
    attention: AttentionMap, truth: Grounding, boxes: NDArray[np.float32]
) -> tuple[str, list[Panel], list[NDArray[np.float32]], str | None]:
    """What ``draw_attention`` shows of the map of one caption: title, panels, objects of the image, relevance."""
    weights, strongest = attention.weights[0].cpu().numpy(), attention.strongest()[0].cpu().numpy()
    title = " ".join(truth.words)
    # Word 0 of an encoded caption is <start>.
    if attention.queries is None:
        of_words = [[truth.objects[place]] if place in truth.objects else [] for place in range(len(truth.words))]
        assert attention.relevances is not None
        each = zip(
            truth.words, weights[1:], strongest[1:], of_words, attention.relevances[0, 1:].tolist(), strict=False
        )
        way = "of the region in red with its words" if attention.name == "i2t" else "of the word with what it looks at"
        return title, [Panel(*contents) for contents in each], [], f"cosine {way}"
    objects = list(truth.objects.values())
    centred = [pointing_answers(strongest[None], boxes[None], box[None, None])[0, :, 2] for box in objects]
    panels = []
    for number, query in enumerate(attention.queries):
        looked_at = [box for box, answers in zip(objects, centred, strict=True) if answers[number]]
        words = None
        if attention.word_weights is not None:
            shades = attention.word_weights[0, number].tolist()
            words = list(zip(["<start>", *truth.words, "<end>"], shades, strict=False))
        panels.append(Panel(query, weights[number], strongest[number], looked_at, words=words))
    return title, panels, objects, None
