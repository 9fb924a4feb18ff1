"""An explanation as a page shows it: attention maps, and the shares of the score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.boxes import grid_boxes
from crossret.data.pictures import read_picture
from crossret.explain.page.contents import Canvas, Pair, Part, Way
from crossret.models.attention import AttentionMap
from crossret.models.contributions import ScoreShares

_TITLES = {
    "t2i": "words look at regions",
    "i2t": "regions look at words",
    "heads": "heads, within the image",
    "steps": "steps",
}
_CELL = 40  # pixels of a region that is shown where nobody knows where it is

UNSEEN = "This model compares the image as a whole: there are no weights to show."
UNSHARED = "The score of this model is no sum over words or regions."

_WEIGHTS = (
    "Brightness of a region and shade of a word are weights, on one scale for all pairs of the page, so that pictures "
    "compare. Red is the largest weight.",
    "“Nearly uniform” is said where the largest weight is less than 1.5 times the mean: the model does not choose "
    "there.",
    "“Cosine” is that of a word with what it looks at, or of the region that looks most at it with what that one sees.",
)
SIMILARITIES = (
    "Brightness is the similarity of a token of the query with one of the document, above the mean, on one scale for "
    "all documents of the page. Red is the largest.",
)
_SHARES = (
    "Shares are what words, regions, heads or steps bring to the score, and add up to it. Attention weights do not."
)
_OBJECTS = "Dashed green is the object that a noun names; the model was not told."
_HANDS = (
    "Hover, tap or focus a word to light up what it looks at, or a region to light up the words. A click keeps it, "
    "Escape lets go. The arrow keys go from word to word and from region to region."
)


def notes_of(pairs: Sequence[Pair], weights: Sequence[str] = _WEIGHTS) -> list[str]:
    """How to read these pairs, whose weights or similarities mean what is said."""
    seen = any(pair.ways for pair in pairs)
    return [
        *(weights if seen else ()),
        *([_SHARES] if any(pair.parts for pair in pairs) else []),
        *([_OBJECTS] if any(pair.objects for pair in pairs) else []),
        *([_HANDS] if seen else []),
    ]


def pair_of(
    caption: str,
    words: Sequence[str],
    maps: Sequence[AttentionMap],
    score: float,
    shares: ScoreShares | None,
    boxes: NDArray[np.float32] | None,
    picture: Path | None,
    **more: Any,
) -> Pair:
    """A pair over its image's picture, or over nothing, with more of ``Pair``'s fields.

    Args:
        caption, words: the caption as it was written, and the names of its rows in maps and shares.
        maps, shares: of one pair; no shares without maps.
        boxes: (R, 4) of the regions in pixels, or of more; None where they are not known.
        picture: the image's file.

    Raises:
        OSError: the picture cannot be read. ValueError: as ``canvas_of``.
    """
    read = _words_of(words, maps, shares)
    regions = min((attention.weights.shape[2] for attention in maps), default=0)
    document = Canvas(picture, (1, 1), None)
    if regions:
        document = canvas_of(picture, None if boxes is None else boxes[:regions], regions)
    ways, parts = _ways_of(maps, len(read), regions), _parts_of(shares, len(read), regions)
    return Pair(caption, read, document, score, ways, parts, **more)


def _words_of(words: Sequence[str], maps: Sequence[AttentionMap], shares: ScoreShares | None) -> tuple[str, ...]:
    """Words of a caption that the model reads, as far as maps or shares tell."""
    counts = [attention.weights.shape[1] for attention in maps if attention.queries is None]
    counts += [attention.word_weights.shape[2] for attention in maps if attention.word_weights is not None]
    if shares is not None:
        counts += [part.values.shape[1] for part in shares.parts if part.items == "words"]
    return tuple(words[: min(counts, default=len(words))])


def canvas_of(picture: Path | None, boxes: NDArray[np.float32] | None, regions: int) -> Canvas:
    """Where an image's regions lie: at their boxes, on a square grid over its picture, or, without either, in rows.

    Args:
        picture: the image's file, if there is one.
        boxes: (R, 4) in its pixels; None where they are not known.
        regions: how many there are.

    Raises:
        OSError: the picture cannot be read. ValueError: it is malformed; regions without boxes are no square grid; most
            boxes lie outside of it.
    """
    if picture is not None:
        size = read_picture(picture).size
        if boxes is not None and (boxes[:, :2] >= size).any(1).mean() > 0.5:
            raise ValueError(f"{picture}: has {size[0]} x {size[1]} pixels, and most boxes lie outside of it")
        return Canvas(picture, size, boxes if boxes is not None else grid_boxes(regions, *size))
    if boxes is not None:
        width, height = boxes[:, 2:].max(0).tolist()
        return Canvas(None, (max(1.0, width), max(1.0, height)), boxes)
    across = math.ceil(math.sqrt(regions))
    down = math.ceil(regions / across)
    cells = [(x * _CELL, y * _CELL, (x + 1) * _CELL, (y + 1) * _CELL) for y in range(down) for x in range(across)]
    return Canvas(None, (across * _CELL, down * _CELL), np.array(cells[:regions], np.float32), numbered=True)


def _ways_of(maps: Sequence[AttentionMap], words: int, regions: int) -> tuple[Way, ...]:
    """The maps of one pair without their padding."""
    made = []
    for attention in maps:
        weights, named = _first(attention.weights[0], regions, dim=1), (attention.name, _title(attention.name))
        if attention.queries is not None:
            of_words = attention.word_weights
            shades = None if of_words is None else _numbers(_first(of_words[0], words, dim=1))
            made.append(Way(*named, _numbers(weights), attention.queries, word_weights=shades))
            continue
        cosines = None if attention.relevances is None else _numbers(_first(attention.relevances[0], words))
        over: Literal["words", "regions"] = "words" if attention.name == "i2t" else "regions"
        made.append(Way(*named, _numbers(_first(weights, words)), cosines=cosines, over=over))
    return tuple(made)


def _parts_of(shares: ScoreShares | None, words: int, regions: int) -> tuple[Part, ...] | None:
    """Parts of the sum that the score of one pair is."""
    if shares is None:
        return None
    made = []
    for part in shares.parts:
        values = part.values[0].double().cpu()
        count = {"words": words, "regions": regions}.get(part.items)
        if count is None:
            made.append(Part(part.items, "others", values.numpy(), part.names))
        elif part.items == "words":
            made.append(Part(part.items, "words", _first(values, count).numpy()))
        else:
            made.append(Part(part.items, "regions", values[:count].numpy()))
    return tuple(made)


def _title(name: str) -> str:
    return _TITLES.get(name, name)


def _first(tensor: Tensor, count: int, dim: int = 0) -> Tensor:
    return tensor.narrow(dim, 0, min(count, tensor.shape[dim]))


def _numbers(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().float().cpu().numpy()
