"""SMAN: Stacked Multi-Modal Attention Network for Cross-Modal Image-Text Retrieval (Ji et al.)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from crossret.distributed import Share
from crossret.encoders import TokenEncoder, WordEncoder, l2_normalize, xavier_linear
from crossret.hyperparameters import SmanConfig
from crossret.losses import IntraPairLoss, matching_loss
from crossret.models.attention import AttentionMap, paired
from crossret.models.base import Model, dot_products, mean_of_items
from crossret.models.contributions import ScoreShares, SharePart
from crossret.models.encoded import Encoded
from crossret_kernels import (
    AttentionStep,
    GatedAttention,
    attention_pool_weights,
    gated_attention_scores,
    gated_attention_weights,
)

_CONTEXTS = "contexts"
_STEPS = "step 0: memory", "step 1: intra-modal", "step 2: multi-modal"  # names of the levels


class Sman(Model):
    """SMAN: three levels of context vectors a side, the last of them made for each pair through a fusion gate.

    ``sequences`` of encoded items are images' regions as they came (n, R, image_dim) or captions' encoded words
    (n, W, D), and ``vectors["contexts"]`` (n, 2, D) the context vectors of levels 0 and 1.

    With a ``text_dim`` tokens of captions, with the dropout of words, pass a linear layer in the place of embedding and
    LSTM (Eq. 1); the memories, the attention steps and the gate stay.
    """

    kind: ClassVar[str] = SmanConfig.kind
    config: SmanConfig

    def __init__(self, config: SmanConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.image = VisualMemories(config)
        words = config.vocabulary_size, config.word_dim, config.embed_dim
        self.text = (
            WordEncoder(*words, cell="lstm", normalize=False, dropout=config.dropout)
            if config.text_dim is None
            else TokenEncoder(config.text_dim, config.embed_dim, dropout=config.dropout)
        )
        self.image_step = Attention(config.image_dim, config.embed_dim)
        self.text_step = Attention(config.embed_dim, config.embed_dim)
        self.image_project = xavier_linear(config.image_dim, config.embed_dim)
        if config.levels == 3:
            self.gate = FusionGate(config)
        self.matching_loss = matching_loss(config)
        self.intra_pair_loss = IntraPairLoss(config.intra_pair_margin, config.levels)

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        """Regions are read in the order of their boxes or as given, as ``config.spatial_order`` says."""
        if not self.config.location or self.config.spatial_order is False:
            boxes = None
        elif self.config.spatial_order and boxes is None:
            raise ValueError("boxes are needed: this model reads regions in the order of their boxes")
        features = self.dropout(features)
        memory = self.image(features, lengths, boxes)
        pooled, _ = self.image_step(features, memory, lengths)
        context = self.image_project(pooled.to(features.dtype)).tanh()
        return Encoded(features, lengths, {_CONTEXTS: torch.stack([memory, context], 1)})

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        words = self.text(tokens, lengths)
        memory = mean_of_items(words, lengths)  # Eq. 8
        pooled, _ = self.text_step(words, memory, lengths)
        return Encoded(words, lengths, {_CONTEXTS: torch.stack([memory, pooled.to(words.dtype)], 1)})

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) sums of the levels' cosines (Eq. 20), or (P,) for (P, 2) int64 ``pairs``."""
        if self.config.levels == 2:
            return dot_products(
                l2_normalize(images.vectors[_CONTEXTS]).flatten(1),
                l2_normalize(captions.vectors[_CONTEXTS]).flatten(1),
                pairs,
            )
        return gated_attention_scores(**self._gated(images, captions), pairs=pairs)

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Eq. 23: {"loss", "triplet", "intra_pair"}, sums over a batch in which image i and caption i match.

        "intra_pair" is there with a weight alone; another ``config.loss`` stands in the place of "triplet", and all are
        means.
        """
        share = share or Share.whole(len(images))
        scores = self.score(images, captions.gathered(share))
        matching = self.matching_loss(scores, image_ids, share=share)
        if self.config.intra_pair_weight == 0:
            return {"loss": matching}
        intra_pair = self.matching_loss.reduced(self.intra_pair_loss(scores, positive_offset=share.offset), share)
        loss = matching + self.config.intra_pair_weight * intra_pair
        return {"loss": loss, self.config.loss: matching, "intra_pair": intra_pair}

    @torch.no_grad()
    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """The steps (Figs. 9, 10): the multi-modal one, and the intra-modal one before it."""
        pairs = paired(images, captions)
        weights, word_weights = (
            [step(side.sequences, side.vectors[_CONTEXTS][:, 0], side.lengths)[1]]
            for step, side in ((self.image_step, images), (self.text_step, captions))
        )
        if self.config.levels == 3:
            _, of_regions, of_words = gated_attention_weights(**self._gated(images, captions), pairs=pairs)
            weights.append(of_regions)
            word_weights.append(of_words)
        regions, words = torch.stack(weights, 1), torch.stack(word_weights, 1)
        return (AttentionMap("steps", regions, queries=_STEPS[1 : self.config.levels], word_weights=words),)

    @torch.no_grad()
    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares:
        """Shares of the levels, whose cosines add up (Eq. 20); the multi-modal one has what the others leave of it."""
        scores = self.score(images, captions, paired(images, captions))
        v, t = (l2_normalize(side.vectors[_CONTEXTS].double()) for side in (images, captions))
        cosines = (v * t).sum(2)
        if self.config.levels == 3:
            cosines = torch.cat([cosines, (scores.double() - cosines.sum(1))[:, None]], 1)
        part = SharePart("steps", "steps", cosines, cosines, _STEPS[: self.config.levels])
        return ScoreShares.adding_up(scores, (part,))

    def _gated(self, images: Encoded, captions: Encoded) -> dict[str, Any]:
        return {
            "regions": images.sequences,
            "words": captions.sequences,
            "region_lengths": images.lengths,
            "word_lengths": captions.lengths,
            "region_contexts": images.vectors[_CONTEXTS],
            "word_contexts": captions.vectors[_CONTEXTS],
            "parameters": self.gate.parameters_of_gate(),
            "alpha": self.config.alpha,
        }


class VisualMemories(nn.Module):
    """v⁽⁰⁾: the global memory tanh(P⁽⁰⁾ mean I) and, if ``config.location``, the mean of a GRU's states (Eqs. 2-4)."""

    def __init__(self, config: SmanConfig) -> None:
        super().__init__()
        self.project = xavier_linear(config.image_dim, config.embed_dim)
        self.gru = nn.GRU(config.image_dim, config.embed_dim, batch_first=True) if config.location else None

    def forward(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Tensor:
        """(n, R, image_dim), (n,) lengths and (n, R, 4) boxes to (n, D)."""
        valid = (torch.arange(features.shape[1], device=features.device) < lengths[:, None])[:, :, None]
        memory = self.project(mean_of_items(features, lengths)).tanh()
        if self.gru is None:
            return memory
        if boxes is not None:
            order = spatial_order(boxes, lengths)
            features = features.gather(1, order[:, :, None].expand_as(features))
        # Padding is behind an image's regions in either order, where the states of those before do not see it.
        states, _ = self.gru(features.masked_fill(~valid, 0))
        return memory + mean_of_items(states, lengths)


def spatial_order(boxes: Tensor, lengths: Tensor) -> Tensor:
    """The regions of each image from the top down and, of one height, from left to right, by their centres.

    Args:
        boxes: (n, R, 4) x0, y0, x1, y1.
        lengths: (n,) int64, regions in each image.

    Returns:
        (n, R) int64; padding stays behind the regions.
    """
    x, y = ((boxes[:, :, side] + boxes[:, :, side + 2]) / 2 for side in (0, 1))
    padding = torch.arange(boxes.shape[1], device=boxes.device) >= lengths[:, None]
    across = x.argsort(dim=1, stable=True)
    down = y.masked_fill(padding, torch.inf).gather(1, across).argsort(dim=1, stable=True)
    order = across.gather(1, down)
    # Regions without a finite height would come among the padding.
    behind = padding.gather(1, order).to(torch.int8).argsort(dim=1, stable=True)
    return order.gather(1, behind)


class Attention(nn.Module):
    """Attention within one side, guided by a query (Eqs. 5, 6 of regions, 9, 10 of words).

    Args:
        dim: length of what is attended to.
        embed_dim: of the query and of the hidden units.
    """

    def __init__(self, dim: int, embed_dim: int) -> None:
        super().__init__()
        self.key = xavier_linear(dim, embed_dim)
        self.query = xavier_linear(embed_dim, embed_dim)
        self.head = xavier_linear(embed_dim, 1, bias=False)  # a bias would cancel in the softmax

    def forward(self, features: Tensor, query: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(n, L, dim), (n, D) and (n,) to the attended (n, dim) and the weights (n, L)."""
        hidden = self.key(features).tanh() * self.query(query).tanh()[:, None]
        pooled, weights = attention_pool_weights(features, self.head(hidden), lengths)
        return pooled[:, 0], weights[:, 0]

    def step(self) -> AttentionStep:
        """The parameters, as ``gated_attention_scores`` takes them."""
        return AttentionStep(
            self.key.weight, self.key.bias, self.query.weight, self.query.bias, self.head.weight.squeeze(0)
        )


class FusionGate(nn.Module):
    """The parameters of the gate and of the multi-modal attention of both sides (Eqs. 12-18)."""

    def __init__(self, config: SmanConfig) -> None:
        super().__init__()
        self.image_memory = xavier_linear(config.embed_dim, config.embed_dim)
        self.text_memory = xavier_linear(config.embed_dim, config.embed_dim)
        self.image_step = Attention(config.image_dim, config.embed_dim)
        self.text_step = Attention(config.embed_dim, config.embed_dim)
        self.image_project = xavier_linear(config.image_dim, config.embed_dim)

    def parameters_of_gate(self) -> GatedAttention:
        """Parameters as ``gated_attention_scores`` takes them."""
        return GatedAttention(
            self.image_memory.weight,
            self.image_memory.bias,
            self.text_memory.weight,
            self.text_memory.bias,
            self.image_step.step(),
            self.text_step.step(),
            self.image_project.weight,
            self.image_project.bias,
        )
