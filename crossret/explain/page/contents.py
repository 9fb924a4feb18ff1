"""Contents of a page: pairs of a caption and an image, or of a query and a document, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_MOST_RECALL = 50  # places of the curves


@dataclass(frozen=True)
class Way:
    """One way in which Q queries look at the R regions of an image, or at the tokens of a document.

    Attributes:
        name: short, the same on all pairs: those of one name have one scale.
        title: its name in the list to choose from.
        weights: (Q, R) float.
        queries: names of the queries, heads or steps; None where they are the caption's words.
        cosines: (Q,) float, of each query with what it looks at; None where that is not known.
        word_weights: (Q, W) float, how queries that are no words weigh the caption's words.
        unit: kind of the weights. Of similarities nothing is bright that is not above the page's mean.
        over: items that weights are spread over: "regions" that a query looks at, or "words" that a region looks at.
    """

    name: str
    title: str
    weights: NDArray[np.float32]
    queries: tuple[str, ...] | None = None
    cosines: NDArray[np.float32] | None = None
    word_weights: NDArray[np.float32] | None = None
    unit: Literal["weight", "similarity"] = "weight"
    over: Literal["regions", "words"] = "regions"


@dataclass(frozen=True)
class Part:
    """A part of a score that is the sum of what some items bring.

    Attributes:
        title: kind of the items.
        over: whether they are the pair's words or regions, so that both light up together.
        values: (n,) float64, each one's share.
        labels: names of the items; None where they are words or regions.
    """

    title: str
    over: Literal["words", "regions", "others"]
    values: NDArray[np.float64]
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Canvas:
    """Where the regions of an image lie.

    Attributes:
        picture: its file; None where there is none, and boxes lie on nothing.
        size: (width, height) of the image in pixels.
        boxes: (R, 4) x0, y0, x1, y1 in these pixels; None of an image that nothing looks at by regions.
        numbered: whether boxes are only places to show the regions at, by number.
    """

    picture: Path | None
    size: tuple[float, float]
    boxes: NDArray[np.float32] | None
    numbered: bool = False


@dataclass(frozen=True)
class Result:
    """Result of a search, at a place of a ranking.

    Attributes:
        rank: from 1.
        score: of the pair.
        name: of the image, or the text of the caption.
        right: whether it is what belongs to the query; None where nobody knows.
        picture: the image's file, if any.
        is_text: whether it is a caption.
        key: that of the pair that the result is with its query.
    """

    rank: int
    score: float
    name: str
    right: bool | None = None
    picture: Path | None = None
    is_text: bool = False
    key: tuple[object, int] | None = None


@dataclass(frozen=True)
class Pair:
    """A caption beside an image, or a query beside a document.

    Attributes:
        caption: the caption as it was written.
        words: its words as the model reads them.
        document: where its regions lie; or its tokens, of a text.
        score: the pair's.
        ways: how it is looked at; none of a model that does not attend.
        parts: parts that add up to the score; None where it is no sum.
        about: line above the caption.
        mark: of the pair's place in the ranking, with ``right``, whether it is the right one; None where nobody knows.
        found: panels of what was found, by title.
        objects: boxes (4,) of what some words name, by their place in ``words``; of rendered scenes.
        key: link of results with their pairs: an image, or one search, and a number in it.
        is_other: whether it is of the same caption as the pair before it, with another image.
    """

    caption: str
    words: tuple[str, ...]
    document: Canvas | tuple[str, ...]
    score: float
    ways: tuple[Way, ...]
    parts: tuple[Part, ...] | None = None
    about: str = ""
    mark: str | None = None
    right: bool | None = None
    found: dict[str, list[Result]] = field(default_factory=dict)
    objects: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    key: tuple[object, int] | None = None
    is_other: bool = False


@dataclass(frozen=True)
class Curve:
    """Recall of one direction.

    Attributes:
        name: the kind of its queries.
        ranks: (n,) of the right answers, 0 being the best.
        n_items: how many items were searched.
    """

    name: str
    ranks: NDArray[np.int64]
    n_items: int

    @property
    def last(self) -> int:
        """The last place that is drawn."""
        return min(_MOST_RECALL, self.n_items)

    @property
    def median_rank(self) -> float:
        """Median rank, from 1, as ``retrieval_metrics`` has it."""
        return float(np.floor(np.median(self.ranks)) + 1)

    def at(self, place: int) -> float:
        """R@place in percent."""
        return float(100 * (self.ranks < place).mean())

    def points(self, left: float, right: float, bottom: float, top: float) -> str:
        """The curve as points of an SVG polyline in this frame."""
        places = range(1, self.last + 1)
        across = [self._x(place, left, right) for place in places]
        return " ".join(
            f"{x:.1f},{bottom - self.at(place) / 100 * (bottom - top):.1f}"
            for place, x in zip(places, across, strict=True)
        )

    def ticks(self, left: float, right: float) -> list[tuple[int, float]]:
        """Places with where they are in the frame."""
        wanted = [1, *range(10, self.last + 1, 10)] if self.last >= 10 else range(1, self.last + 1)
        return [(place, round(self._x(place, left, right), 1)) for place in wanted]

    def _x(self, place: int, left: float, right: float) -> float:
        return left + (right - left) * (place - 1) / max(1, self.last - 1)


@dataclass(frozen=True)
class Page:
    """Contents of a page.

    Attributes:
        title: its heading.
        pairs: at least one.
        facts: lines beneath the heading, by name.
        recall: curves of both directions with the same last place, or none.
        unseen: note on pairs without ways.
        unshared: note on scores that are no sums.
        notes: how to read what is shown.

    Raises:
        ValueError: there are no pairs.
    """

    title: str
    pairs: list[Pair]
    facts: list[tuple[str, str]] = field(default_factory=list)
    recall: list[Curve] = field(default_factory=list)
    unseen: str = ""
    unshared: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("pairs: there are none to show")
