"""Shares of a score: those of words, regions, heads or steps, which add up to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crossret.models.attention import paired
from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer, SumMaxScorer

ITEMS = {"t2i": "words", "i2t": "regions"}  # which side's items attend, and are pooled, in a direction


@dataclass(frozen=True)
class SharePart:
    """A part of the scores of P pairs: what each of n items brings. Zero at the padding.

    Attributes:
        name: which of the model's ways, as the ``AttentionMap`` of this name looks: "t2i", "i2t", "heads", "steps".
        items: kind of items: "words" (n = W, word 0 is <start>), "regions" (n = R), "heads" or "steps".
        values: (P, n) float64, each one's share of the score.
        relevances: (P, n) float, what was pooled to this part: of words, regions, heads and steps the cosine with
            what they are compared with, of Sum-Max the largest similarity.
        names: names of heads and steps, as in the map; None of words and regions.
    """

    name: str
    items: str
    values: Tensor
    relevances: Tensor
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ScoreShares:
    """The scores of P pairs as sums.

    All values of all parts summed in float64 are the score, float32 scores bit for bit once they are rounded to
    float32. What the model's arithmetic rounded otherwise than the sum does is in the largest share of the pair.

    Attributes:
        scores: (P,), those of ``model.score``.
        parts: at least one.
    """

    scores: Tensor
    parts: tuple[SharePart, ...]

    @classmethod
    def adding_up(cls, scores: Tensor, parts: tuple[SharePart, ...]) -> ScoreShares:
        """Shares whose parts add up to the scores but for rounding."""
        widths = [part.values.shape[1] for part in parts]
        values = torch.cat([part.values for part in parts], 1)
        largest = values.abs().argmax(1, keepdim=True)
        values = values.scatter_add(1, largest, (scores.double() - values.sum(1))[:, None])
        split = values.split(widths, 1)
        return cls(scores, tuple(replace(part, values=own) for part, own in zip(parts, split, strict=True)))


def scorer_part(
    scorer: CrossAttentionScorer | SumMaxScorer, images: Encoded, captions: Encoded, weight: float = 1.0
) -> SharePart:
    """Shares of words or regions in a scorer's scores of image i with caption i, times the weight.

    Takes memory as ``word_region_attention``, and raises as it does.
    """
    _, _, relevances, values = scorer.contributions(
        images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=paired(images, captions)
    )
    return SharePart(scorer.direction, ITEMS[scorer.direction], weight * values, relevances)
