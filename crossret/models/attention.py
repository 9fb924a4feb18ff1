"""Attention of a model over the regions of an image beside a caption."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer, SumMaxScorer


@dataclass(frozen=True)
class AttentionMap:
    """One way in which a model looks at the regions of P images beside their captions, zero at the padding.

    Q queries look at R regions: the caption's words, or the heads or steps of a model that attends within the image.

    Attributes:
        name: which of the model's ways: "t2i", "i2t", "heads", "steps".
        weights: (P, Q, R) float. Each query's weights over the regions sum to one; where regions attend to words
            ("i2t"), each region's weights over the words do.
        relevances: (P, Q) float: of each word the cosine with what it looks at, the sum of regions by their weights;
            where regions attend to words, the cosine of the word's strongest region with what that one attends to; of
            Sum-Max the similarity. None where, and only where, the queries are no words.
        queries: names of the Q queries; None where they are the caption's words.
        word_weights: (P, Q, W) float, how the queries that are no words weigh the caption's words; None where they
            are words.
    """

    name: str
    weights: Tensor
    relevances: Tensor | None = None
    queries: tuple[str, ...] | None = None
    word_weights: Tensor | None = None

    def strongest(self) -> Tensor:
        """(P, Q) int64: the region with the largest weight of each query, outlined in SCAN Fig. 4."""
        return self.weights.argmax(dim=2)

    def over_first(self, regions: int) -> AttentionMap:
        """This map over so many regions, of images that have no more."""
        return replace(self, weights=self.weights[:, :, :regions])


@torch.no_grad()
def word_region_attention(
    scorer: CrossAttentionScorer | SumMaxScorer, images: Encoded, captions: Encoded
) -> AttentionMap:
    """Attention behind the score of image i with caption i, for P encoded images and as many encoded captions.

    Takes memory for 2 * P * W * R numbers: meant for chosen pairs, not for every image with every caption.

    Args:
        scorer: the model's; its options are followed, and its direction is the map's name. Of Sum-Max all weight is
            on what is taken.
        images: P entries, for instance of ``Scan.encode_images``, one a pair (repeat an image where it is needed).
        captions: P entries.

    Raises:
        ValueError: there are not as many images as captions.
    """
    pairs = paired(images, captions)
    sides = images.sequences, captions.sequences, captions.lengths, images.lengths
    if isinstance(scorer, SumMaxScorer):
        _, places, relevance, _ = scorer.contributions(*sides, pairs=pairs)
        contexts = (images if scorer.direction == "t2i" else captions).sequences
        one = (places >= 0)[:, :, None].to(contexts.dtype)
        weights = contexts.new_zeros(*places.shape, contexts.shape[1])
        weights = weights.scatter(2, places.clamp(min=0)[:, :, None], one)
        relevance = relevance.to(contexts.dtype)
    else:
        _, weights, relevance = scorer.attention(*sides, pairs=pairs)
    return word_map(scorer.direction, weights, relevance)


def word_map(direction: str, weights: Tensor, relevance: Tensor) -> AttentionMap:
    """The map of words over regions from weights (P, queries, contexts) and relevances (P, queries) of a direction."""
    if direction == "i2t":
        weights = weights.transpose(1, 2)
        nowhere = (weights == 0).all(dim=2)  # the padding, whose strongest region would be the first
        relevance = relevance.gather(1, weights.argmax(dim=2)).masked_fill(nowhere, 0)
    return AttentionMap(direction, weights, relevance)


def paired(images: Encoded, captions: Encoded) -> Tensor:
    """The pairs (i, i) of as many images as captions, (P, 2) int64.

    Raises:
        ValueError: there are not as many images as captions.
    """
    if len(images) != len(captions):
        raise ValueError(f"images and captions must be pairs, got {len(images)} images and {len(captions)} captions")
    each = torch.arange(len(images), device=images.sequences.device)
    return torch.stack([each, each], 1)
