"""What SCAN looks at: the attention of the words of a caption over the regions of an image, and whether it is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.encoded import Encoded
from crossret.scorers import CrossAttentionScorer


@dataclass(frozen=True)
class Attention:
    """Attention inside P pairs of an image and a caption, padded to R regions and W words; zero at the padding.

    Attributes:
        weights: (P, W, R) float, the alpha of SCAN Eq. 3. Text-Image: each word's weights over the regions
            sum to one. Image-Text: each region's weights over the words sum to one.
        relevance: R of SCAN Eq. 4, a cosine: (P, W) of every word (Text-Image) or (P, R) of every region (Image-Text).
        strength: (P, W, R) float, at least 0. Weight times relevance, if that is positive: the brightness
            of SCAN Figs. 4 and 7-9, which "considers the importance of both region and word".
    """

    weights: Tensor
    relevance: Tensor
    strength: Tensor

    def strongest(self) -> Tensor:
        """(P, W) int64: the region with the largest attention weight of each word, outlined in SCAN Fig. 4."""
        return self.weights.argmax(dim=2)


@torch.no_grad()
def word_region_attention(scorer: CrossAttentionScorer, images: Encoded, captions: Encoded) -> Attention:
    """What the score of image i with caption i saw, for P encoded images and as many encoded captions.

    Takes memory for 2 * P * W * R numbers: meant for chosen pairs, not for every image with every caption.

    Args:
        scorer: the model's; its options are followed.
        images: P entries, for instance of ``Scan.encode_images``, one a pair (repeat an image where it is needed).
        captions: P entries.

    Raises:
        ValueError: there are not as many images as captions.
    """
    if len(images) != len(captions):
        raise ValueError(f"images and captions must be pairs, got {len(images)} images and {len(captions)} captions")
    each = torch.arange(len(images), device=images.sequences.device)
    _, weights, relevance = scorer.attention(
        images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=torch.stack([each, each], 1)
    )
    strength = weights * relevance.clamp(min=0)[:, :, None]
    if scorer.direction == "i2t":
        weights, strength = weights.transpose(1, 2), strength.transpose(1, 2)
    return Attention(weights, relevance, strength)


@dataclass(frozen=True)
class PointingGame:
    """How often nouns look at what they name, by two rules.

    A noun points at the region with its largest attention weight. By the first rule it hits where that region overlaps
    the box of the object that it names: their intersection has an area. By the second, stricter one it hits where the
    region's centre lies in that box, so that a large region around several objects does not hit all of them.

    Attributes:
        nouns: how many nouns were asked.
        accuracy: the share of them whose region overlaps the object, 0 to 1.
        chance: the share that would if each pointed at a region of its image drawn at random.
        centre_accuracy: the share of them whose region has its centre in the object's box.
        centre_chance: the share that would at random.
    """

    nouns: int
    accuracy: float
    chance: float
    centre_accuracy: float
    centre_chance: float


def pointing_game(
    strongest: NDArray[np.int64], regions: NDArray[np.float32], objects: NDArray[np.float32]
) -> PointingGame:
    """Score the attention of N nouns against the objects they name.

    Args:
        strongest: (N,) the region that each noun looks at most, 0 to R - 1.
        regions: (N, R, 4) x0, y0, x1, y1 in pixels, the boxes of all regions of each noun's image.
        objects: (N, 4) likewise, the box of the object that each noun names.

    Raises:
        ValueError: there are no nouns, or the shapes do not agree.
    """
    n = len(strongest)
    if n == 0:
        raise ValueError("strongest: there are no nouns to ask")
    if regions.ndim != 3 or regions.shape[::2] != (n, 4) or objects.shape != (n, 4):
        raise ValueError(f"{n} nouns do not fit regions of shape {regions.shape} and objects of shape {objects.shape}")
    sides = np.minimum(regions[:, :, 2:], objects[:, None, 2:]) - np.maximum(regions[:, :, :2], objects[:, None, :2])
    overlaps = (sides > 0).prod(axis=2)
    centres = (regions[:, :, :2] + regions[:, :, 2:]) / 2
    inside = ((objects[:, None, :2] <= centres) & (centres <= objects[:, None, 2:])).prod(axis=2)
    each = np.arange(n)
    return PointingGame(
        n,
        accuracy=float(overlaps[each, strongest].mean()),
        chance=float(overlaps.mean()),
        centre_accuracy=float(inside[each, strongest].mean()),
        centre_chance=float(inside.mean()),
    )
