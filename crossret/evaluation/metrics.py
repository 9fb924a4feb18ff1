"""Retrieval quality: rank every image and caption by its scores, and count."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossret.data.owners import PUBLISHED_FOLDS

_RANK_BLOCK = 2**24  # scores that are compared at a time: bounds the workspace whatever the matrix


@dataclass(frozen=True)
class DirectionMetrics:
    """Retrieval in one direction: r1, r5, r10 in percent of queries; median and mean rank, the best rank being 1."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float


@dataclass(frozen=True)
class RetrievalMetrics:
    """Retrieval in both directions.

    Attributes:
        i2t: sentence retrieval, a query an image.
        t2i: image retrieval, a query a caption.
    """

    i2t: DirectionMetrics
    t2i: DirectionMetrics

    @property
    def rsum(self) -> float:
        """The sum of the six recalls, 0 to 600."""
        return sum(part.r1 + part.r5 + part.r10 for part in (self.i2t, self.t2i))

    @property
    def mr(self) -> float:
        """mR, the mean of the six recalls, in percent."""
        return self.rsum / 6

    def as_dict(self) -> dict[str, float]:
        """All figures by name: "i2t_r1", …, "t2i_meanr", "rsum", "mr"."""
        parts = {"i2t": self.i2t, "t2i": self.t2i}
        figures = {f"{way}_{name}": value for way, part in parts.items() for name, value in vars(part).items()}
        return {**figures, "rsum": self.rsum, "mr": self.mr}

    @classmethod
    def from_dict(cls, figures: dict[str, float]) -> RetrievalMetrics:
        """The inverse of ``as_dict``."""
        names = [field.name for field in dataclasses.fields(DirectionMetrics)]
        i2t, t2i = (DirectionMetrics(*(figures[f"{way}_{name}"] for name in names)) for way in ("i2t", "t2i"))
        return cls(i2t, t2i)


def retrieval_metrics(scores: NDArray[np.floating], image_of_caption: NDArray[np.integer]) -> RetrievalMetrics:
    """Recalls and ranks of both directions from a score matrix.

    Args:
        scores: (n_images, n_captions) floating point, higher is better.
        image_of_caption: (n_captions,) integers, the image that each caption describes; every image has a caption.

    Raises:
        TypeError, ValueError: as ``retrieval_ranks``.
    """
    return metrics_from_ranks(*retrieval_ranks(scores, image_of_caption))


def retrieval_ranks(
    scores: NDArray[np.floating], image_of_caption: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rank of the true item of every query; 0 is the best.

    The rank is the number of items with a greater score plus the number of items with an equal score and a lower
    index, so ties are settled in the same way everywhere. An image's rank is that of the best of its captions.

    Args:
        scores: (n_images, n_captions) floating point, higher is better.
        image_of_caption: (n_captions,) integers, the image that each caption describes; every image has a caption.

    Returns:
        (i2t, t2i): (n_images,) and (n_captions,) int64.

    Raises:
        TypeError: scores are not floating point or image_of_caption is not integral.
        ValueError: the shapes do not agree, a score is NaN (the message names the row), a caption's image is out of
            range or an image has no caption (the message names it).
    """
    owner = _check_scores(scores, image_of_caption)
    n_images, n_captions = scores.shape
    matching = scores[owner, np.arange(n_captions)]
    # Captions by image, then descending score, then index (lexsort is stable): an image's first is its best caption.
    order = np.lexsort((-matching, owner))
    best = order[np.searchsorted(owner[order], np.arange(n_images))]
    return _rank(scores, best), _rank(scores.T, owner)


def metrics_from_ranks(i2t: NDArray[np.integer], t2i: NDArray[np.integer]) -> RetrievalMetrics:
    """Recalls, median and mean rank from the ranks of both directions, 0 being the best.

    Args:
        i2t: (n_images,) integers, rank of the best caption of each image.
        t2i: (n_captions,) integers, rank of the image of each caption.

    Raises:
        TypeError: the ranks are not integers. ValueError: there are none, or one is negative.
    """
    return RetrievalMetrics(_direction_metrics(i2t, "i2t"), _direction_metrics(t2i, "t2i"))


def five_fold(
    scores: NDArray[np.floating], image_of_caption: NDArray[np.integer], *, folds: int = PUBLISHED_FOLDS
) -> RetrievalMetrics:
    """MS-COCO's 1K protocol: the test images in ``folds`` equal runs, each with its captions; the means of all figures.

    Images may have different numbers of captions.

    Args:
        scores: (n_images, n_captions) floating point; ``folds`` divides n_images.
        image_of_caption: (n_captions,) integers.

    Raises:
        TypeError, ValueError: as ``retrieval_ranks``, or the images cannot be divided so.
    """
    owner = _check_scores(scores, image_of_caption)
    n_images = len(scores)
    if folds < 1 or n_images % folds:
        raise ValueError(f"folds: {n_images} images cannot be divided into {folds} equal folds")
    size = n_images // folds
    parts = []
    for start in range(0, n_images, size):
        captions = np.flatnonzero((owner >= start) & (owner < start + size))
        parts.append(retrieval_metrics(scores[start : start + size, captions], owner[captions] - start))
    return RetrievalMetrics(_mean([part.i2t for part in parts]), _mean([part.t2i for part in parts]))


def _check_scores(scores: NDArray[np.floating], image_of_caption: NDArray[np.integer]) -> NDArray[np.int64]:
    if not np.issubdtype(scores.dtype, np.floating):
        raise TypeError(f"scores must be floating point, got {scores.dtype}")
    if not np.issubdtype(image_of_caption.dtype, np.integer):
        raise TypeError(f"image_of_caption must be integers, got {image_of_caption.dtype}")
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores must have shape (n_images, n_captions), none of them 0, got {scores.shape}")
    n_images, n_captions = scores.shape
    if image_of_caption.shape != (n_captions,):
        raise ValueError(f"image_of_caption must have shape ({n_captions},), got {image_of_caption.shape}")
    outside = np.flatnonzero((image_of_caption < 0) | (image_of_caption >= n_images))
    if len(outside):
        caption = int(outside[0])
        raise ValueError(f"image_of_caption[{caption}] is {image_of_caption[caption]}, not in 0..{n_images - 1}")
    without = np.flatnonzero(np.bincount(image_of_caption, minlength=n_images) == 0)
    if len(without):
        raise ValueError(f"image_of_caption: image {without[0]} has no caption")
    # A row's sum can be NaN without a NaN in it (inf - inf), so it only says where to look.
    with np.errstate(invalid="ignore", over="ignore"):
        suspects = np.flatnonzero(np.isnan(scores.sum(axis=1)))
    for row in suspects:
        if np.isnan(scores[row]).any():
            raise ValueError(f"scores: row {row} has a NaN")
    return image_of_caption.astype(np.int64)


def _rank(scores: NDArray[np.floating], true: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank of item ``true[q]`` in row q of (queries, items) scores."""
    n_queries, n_items = scores.shape
    items = np.arange(n_items)
    ranks = np.empty(n_queries, dtype=np.int64)
    step = max(1, _RANK_BLOCK // n_items)
    for start in range(0, n_queries, step):
        rows = scores[start : start + step]
        wanted = true[start : start + step, None]
        score = np.take_along_axis(rows, wanted, axis=1)
        ahead = (rows > score) | ((rows == score) & (items < wanted))
        ranks[start : start + step] = np.count_nonzero(ahead, axis=1)
    return ranks


def _direction_metrics(ranks: NDArray[np.integer], name: str) -> DirectionMetrics:
    if not np.issubdtype(ranks.dtype, np.integer):
        raise TypeError(f"{name} ranks must be integers, got {ranks.dtype}")
    if ranks.ndim != 1 or not len(ranks) or ranks.min() < 0:
        raise ValueError(f"{name} ranks must be a non-empty row of numbers from 0 on")
    r1, r5, r10 = (100.0 * float(np.mean(ranks < k)) for k in (1, 5, 10))
    return DirectionMetrics(r1, r5, r10, float(np.floor(np.median(ranks)) + 1), float(ranks.mean() + 1))


def _mean(parts: list[DirectionMetrics]) -> DirectionMetrics:
    columns = zip(*(dataclasses.astuple(part) for part in parts), strict=True)
    return DirectionMetrics(*(float(np.mean(column)) for column in columns))
