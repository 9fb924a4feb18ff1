"""What a model looks at: attention over the regions of an image beside a caption, and whether it is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.encoded import Encoded
from crossret.scorers import CrossAttentionScorer


@dataclass(frozen=True)
class AttentionMap:
    """One way in which a model looks at the regions of P images beside their captions, zero at the padding.

    Q queries look at R regions: the caption's words, or the heads or steps of a model that attends within the image.

    Attributes:
        name: which of the model's ways: "t2i", "i2t", "heads", "steps".
        weights: (P, Q, R) float. Each query's weights over the regions sum to one; where regions attend to words
            ("i2t"), each region's weights over the words do.
        strength: (P, Q, R) float, at least 0: the brightness of pictures. Of words, weight times relevance where that
            is positive, which "considers the importance of both region and word" (SCAN Figs. 4 and 7-9).
        queries: what the Q queries are called; None where they are the caption's words.
        word_weights: (P, Q, W) float, how the queries that are no words weigh the caption's words; None where they
            are words.
    """

    name: str
    weights: Tensor
    strength: Tensor
    queries: tuple[str, ...] | None = None
    word_weights: Tensor | None = None

    def strongest(self) -> Tensor:
        """(P, Q) int64: the region with the largest weight of each query, outlined in SCAN Fig. 4."""
        return self.weights.argmax(dim=2)


@torch.no_grad()
def word_region_attention(scorer: CrossAttentionScorer, images: Encoded, captions: Encoded) -> AttentionMap:
    """What the score of image i with caption i saw, for P encoded images and as many encoded captions.

    Takes memory for 2 * P * W * R numbers: meant for chosen pairs, not for every image with every caption.

    Args:
        scorer: the model's; its options are followed, and its direction is the map's name.
        images: P entries, for instance of ``Scan.encode_images``, one a pair (repeat an image where it is needed).
        captions: P entries.

    Raises:
        ValueError: there are not as many images as captions.
    """
    pairs = paired(images, captions)
    _, weights, relevance = scorer.attention(
        images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=pairs
    )
    return word_map(scorer.direction, weights, relevance)


def word_map(direction: str, weights: Tensor, relevance: Tensor) -> AttentionMap:
    """The map of words over regions from weights (P, queries, contexts) and relevances (P, queries) of a direction."""
    strength = weights * relevance.clamp(min=0)[:, :, None]
    if direction == "i2t":
        weights, strength = weights.transpose(1, 2), strength.transpose(1, 2)
    return AttentionMap(direction, weights, strength)


def paired(images: Encoded, captions: Encoded) -> Tensor:
    """The pairs (i, i) of as many images as captions, (P, 2) int64.

    Raises:
        ValueError: there are not as many images as captions.
    """
    if len(images) != len(captions):
        raise ValueError(f"images and captions must be pairs, got {len(images)} images and {len(captions)} captions")
    each = torch.arange(len(images), device=images.sequences.device)
    return torch.stack([each, each], 1)


@dataclass(frozen=True)
class PointingGame:
    """How often what attends looks at what a caption names, by two rules.

    A query of an ``AttentionMap`` points at the region with its largest attention weight. By the first rule it hits
    where that region overlaps the box of an object: their intersection has an area. By the second, stricter one it hits
    where the region's centre lies in that box, so that a large region around several objects does not hit all of them.
    Of words the nouns are asked, each for the object that it names; heads and steps are asked once a caption, for any
    of the objects that the caption names.

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
