"""The pointing game: whether what a model looks at most is what its caption names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PointingGame:
    """How often what attends looks at what a caption names, by two rules.

    A query of an ``AttentionMap`` points at the region with its largest attention weight. By the first rule it hits
    where that region overlaps the box of an object: their intersection has an area. By the second, stricter one it hits
    where the region's centre lies in that box, so that a large region around several objects does not hit all of them.
    Nouns are asked among words, each for the object that it names; heads and steps are asked once a caption, for any of
    the objects that the caption names.

    Attributes:
        map: name of the attention map.
        query: "nouns", a head or step, or "all" of these.
        asked: how many times.
        accuracy: the share of the answers whose region overlaps an object, 0 to 1.
        chance: the share that would if each pointed at a region of its image drawn at random.
        centre_accuracy: the share whose region has its centre in an object's box.
        centre_chance: the share that would at random.
    """

    map: str
    query: str
    asked: int
    accuracy: float
    chance: float
    centre_accuracy: float
    centre_chance: float


def pointing_answers(
    strongest: NDArray[np.int64], regions: NDArray[np.float32], objects: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Hold N questions to Q queries each against the objects that are right.

    Args:
        strongest: (N, Q) the region that each query looks at most, 0 to R - 1.
        regions: (N, R, 4) x0, y0, x1, y1 in pixels, the boxes of all regions of each question's image.
        objects: (N, K, 4) likewise, the boxes of the objects; NaN where a question has fewer than K.

    Returns:
        (N, Q, 4), 0 to 1, in the order of ``PointingGame``: whether the region overlaps an object and the share of the
        image's regions that do, whether its centre lies in one and the share of those.

    Raises:
        ValueError: the shapes do not agree.
    """
    n = len(strongest)
    if strongest.ndim != 2 or any(boxes.ndim != 3 or boxes.shape[::2] != (n, 4) for boxes in (regions, objects)):
        raise ValueError(
            f"strongest of shape {strongest.shape} does not fit regions of shape {regions.shape} "
            f"and objects of shape {objects.shape}"
        )
    low, high = objects[:, None, :, :2], objects[:, None, :, 2:]
    sides = np.minimum(regions[:, :, None, 2:], high) - np.maximum(regions[:, :, None, :2], low)
    centres = (regions[:, :, None, :2] + regions[:, :, None, 2:]) / 2
    overlaps, inside = (sides > 0).all(axis=3), ((low <= centres) & (centres <= high)).all(axis=3)
    answers = np.empty((*strongest.shape, 4))
    for rule, right in enumerate((overlaps, inside)):
        hits = np.logical_or.reduce(right, axis=2)
        answers[:, :, 2 * rule] = np.take_along_axis(hits, strongest, axis=1)
        answers[:, :, 2 * rule + 1] = hits.mean(axis=1)[:, None]
    return answers
