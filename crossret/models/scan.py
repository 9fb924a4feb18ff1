"""SCAN: Stacked Cross Attention for Image-Text Matching (Lee et al., ECCV 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from crossret.encoders import RegionEncoder, TokenEncoder, WordEncoder
from crossret.hyperparameters import ScanConfig
from crossret.hyperparameters.model import SHARPENED
from crossret.losses import matching_loss
from crossret.models.attention import AttentionMap, paired, word_region_attention
from crossret.models.base import Model
from crossret.models.contributions import ScoreShares, scorer_part
from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer, EnsembleScorer, SumMaxScorer


class Scan(Model):
    """SCAN: regions by a linear layer, words by a GRU, compared by stacked cross attention.

    With a ``text_dim`` tokens of captions are mapped as regions are, by a linear layer in the place of embedding and
    GRU; the attention between them and regions stays.

    Parameters: ``image.fc.*``, ``text.embed.weight`` and ``text.rnn.*``; behind ``image.`` and ``text.`` the names are
    those of SCAN's published checkpoints.
    """

    kind: ClassVar[str] = ScanConfig.kind
    config: ScanConfig

    def __init__(self, config: ScanConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, normalize=config.image_norm)
        words = config.vocabulary_size, config.word_dim, config.embed_dim
        self.text = (
            WordEncoder(*words, bidirectional=config.bidirectional, normalize=config.text_norm)
            if config.text_dim is None
            else TokenEncoder(config.text_dim, config.embed_dim, normalize=config.text_norm)
        )
        self.scorer = _scorer(config)
        self.matching_loss = matching_loss(config)

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        """The first ``region_count`` regions of each image are kept."""
        if self.config.region_count is not None:
            features = features[:, : self.config.region_count]
            lengths = lengths.clamp(max=self.config.region_count)
        return Encoded(self.image(features), lengths)

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.text(tokens, lengths), lengths)

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) float32 scores, or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        scores: Tensor = self.scorer(
            images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=pairs
        )
        return scores

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """Words to regions of every direction in which the model attends (Fig. 4); of Sum-Max, what each takes."""
        return tuple(word_region_attention(scorer, images, captions) for scorer in self._scorers())

    @torch.no_grad()
    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares:
        """Shares of words (t2i), of regions (i2t) or, of an ensemble, of both, halved as in the mean."""
        scorers = self._scorers()
        parts = tuple(scorer_part(scorer, images, captions, 1 / len(scorers)) for scorer in scorers)
        return ScoreShares.adding_up(self.score(images, captions, paired(images, captions)), parts)

    def _scorers(self) -> list[Any]:
        """Scorers, one for each direction."""
        if isinstance(self.scorer, CrossAttentionScorer):
            return [CrossAttentionScorer(options=way) for way in self.scorer.options.ways]
        return list(self.scorer.scorers) if isinstance(self.scorer, EnsembleScorer) else [self.scorer]


def _scorer(config: ScanConfig) -> nn.Module:
    if config.cross_attention == "sum_max_t2i":
        return SumMaxScorer("t2i")
    if config.cross_attention == "sum_max_i2t":
        return SumMaxScorer("i2t")
    if config.cross_attention != "ensemble":
        return CrossAttentionScorer(**config.attention_options(config.cross_attention))
    ways = [config.attention_options(way) for way in ("t2i", "i2t")]
    same_sharpness = config.pooling not in SHARPENED or config.lambda_lse == config.i2t_lambda_lse
    if config.pooling == config.i2t_pooling and same_sharpness:
        # Directions that differ in λ₁ alone share a product.
        return CrossAttentionScorer(
            **{**ways[0], "direction": "both", "lambda_softmax": tuple(way["lambda_softmax"] for way in ways)}
        )
    return EnsembleScorer(CrossAttentionScorer(**way) for way in ways)
