"""OAN: Object-Oriented Inter- and Intra-Modal Attention Networks (Huang et al.)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from crossret.distributed import Share
from crossret.encoders import NgramEncoder, RegionEncoder, TokenEncoder, WordEncoder, l2_normalize
from crossret.hyperparameters import OanConfig
from crossret.losses import StructurePreservingLoss, matching_loss
from crossret.models.attention import AttentionMap, paired, word_region_attention
from crossret.models.base import Model, dot_products, mean_of_items
from crossret.models.contributions import ScoreShares, SharePart, scorer_part
from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer
from crossret_kernels import attention_pool_weights

_HEADS = "heads"


class Oan(Model):
    """OAN: regions and words attend to each other, and heads attend within either side.

    ``sequences`` (n, L, D) of encoded items are their regions or words and ``vectors["heads"]`` (n, K, D) what their
    heads attend to, as unit vectors; without intra-modal attention K is 1 and it is their mean.

    With a ``text_dim`` tokens of captions pass a linear layer and tanh, as regions do (Eq. 3), in the place of
    embedding and convolutions or LSTM; the attention between the sides and within either stays.
    """

    kind: ClassVar[str] = OanConfig.kind
    config: OanConfig

    def __init__(self, config: OanConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, activation="tanh", normalize=False)
        words = (config.vocabulary_size, config.word_dim, config.embed_dim)
        self.text: nn.Module
        if config.text_dim is not None:
            self.text = TokenEncoder(config.text_dim, config.embed_dim, activation="tanh")
        elif config.text_encoder == "ngram":
            self.text = NgramEncoder(*words)
        else:
            self.text = WordEncoder(*words, cell="lstm", normalize=False)
        if config.intra_attention:
            self.image_heads = ContextHeads(config)
            self.text_heads = ContextHeads(config)
        # SCAN's form, with the paper's clip at zero: objects are compared, and averaged, as unit vectors.
        self.scorers = nn.ModuleDict()
        if config.inter_attention:
            for direction, temperature in (("t2i", config.lambda_tv), ("i2t", config.lambda_vt)):
                self.scorers[direction] = CrossAttentionScorer(
                    direction, clip_slope=0.0, lambda_softmax=temperature, pooling="avg", normalize=True
                )
        self.structure_loss = StructurePreservingLoss(
            intra_negatives=config.intra_negatives,
            intra_margin=config.intra_margin,
            intra_weight=config.intra_weight,
            matching_loss=matching_loss(config),
        )

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        regions = self.image(features)
        return Encoded(regions, lengths, {_HEADS: self._heads(regions, lengths, "image_heads")})

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        words = self.text(tokens, lengths)
        return Encoded(words, lengths, {_HEADS: self._heads(words, lengths, "text_heads")})

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores (Eq. 14), or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        parts = self._scores(images, captions, pairs)
        return torch.stack([weight * score for weight, score in parts.values()]).sum(0)

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Eq. 13 with Eq. 10, summed over a batch in which image i and caption i match.

        {"loss"} and its terms as they are weighted: the triplet losses "t2i", "i2t" and "heads" of the scores there
        are, and "negatives", that within the modalities. Another ``config.loss`` stands in the triplet loss's place,
        and all are means.
        """
        share = share or Share.whole(len(images))
        all_captions = captions.gathered(share)
        terms = {}
        for name, (weight, scores) in self._scores(images, all_captions, None).items():
            if name == _HEADS:
                matching, within = self.structure_loss(
                    scores,
                    _cosines(images.vectors[_HEADS], share.gathered(images.vectors[_HEADS]), None),
                    _cosines(captions.vectors[_HEADS], all_captions.vectors[_HEADS], None),
                    image_ids,
                    share=share,
                )
                terms["negatives"] = weight * within
            else:
                matching = self.structure_loss.matching_loss(scores, image_ids, share=share)
            terms[name] = weight * matching
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    @torch.no_grad()
    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """Both directions between the sides, and the heads within them, as far as the model has them."""
        paired(images, captions)
        maps = [word_region_attention(scorer, images, captions) for scorer in self._between()]
        if self.config.intra_attention:
            weights, word_weights = (
                heads(side.sequences, side.lengths)[1]
                for heads, side in ((self.image_heads, images), (self.text_heads, captions))
            )
            maps.append(AttentionMap(_HEADS, weights, queries=self._names(), word_weights=word_weights))
        return tuple(maps)

    @torch.no_grad()
    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares | None:
        """Shares of words, regions and heads, as far as the model has them (Eq. 14); None of a cosine of two means."""
        config, pairs = self.config, paired(images, captions)
        if not (config.inter_attention or config.intra_attention):
            return None
        weights = self._weights()
        parts = [scorer_part(scorer, images, captions, weights[scorer.direction]) for scorer in self._between()]
        if config.intra_attention:
            cosines = (images.vectors[_HEADS].double() * captions.vectors[_HEADS].double()).sum(2)
            shares = weights[_HEADS] / config.heads * cosines
            parts.append(SharePart(_HEADS, _HEADS, shares, cosines, self._names()))
        return ScoreShares.adding_up(self.score(images, captions, pairs), tuple(parts))

    def _names(self) -> tuple[str, ...]:
        return tuple(f"head {number}" for number in range(1, self.config.heads + 1))

    def _between(self) -> list[CrossAttentionScorer]:
        return [scorer for scorer in self.scorers.values() if isinstance(scorer, CrossAttentionScorer)]

    def _heads(self, objects: Tensor, lengths: Tensor, name: str) -> Tensor:
        if self.config.intra_attention:
            pooled: Tensor = getattr(self, name)(objects, lengths)[0]
        else:
            pooled = mean_of_items(objects, lengths)[:, None]
        return l2_normalize(pooled)

    def _weights(self) -> dict[str, float]:
        """Weights of the scores in the sum (Eq. 14), by name. Without attention between the sides the heads are all."""
        config = self.config
        between = 1 - config.gamma if config.intra_attention else 1.0
        weights = dict.fromkeys(self.scorers, between)
        if config.intra_attention or not config.inter_attention:
            weights[_HEADS] = config.gamma if config.intra_attention and config.inter_attention else 1.0
        return weights

    def _scores(self, images: Encoded, captions: Encoded, pairs: Tensor | None) -> dict[str, tuple[float, Tensor]]:
        """Every score by name with its weight in the sum."""
        scores: dict[str, tuple[float, Tensor]] = {}
        for name, weight in self._weights().items():
            if name == _HEADS:
                values = _cosines(images.vectors[_HEADS], captions.vectors[_HEADS], pairs)
            else:
                values = self.scorers[name](
                    images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=pairs
                )
            scores[name] = weight, values
        return scores


def _cosines(heads: Tensor, others: Tensor, pairs: Tensor | None) -> Tensor:
    """The mean over the heads (n, K, D) and (m, K, D) of their cosines, S(v_VV, e_TT): (n, m), or (P,) of the pairs."""
    return dot_products(heads.flatten(1), others.flatten(1), pairs) / heads.shape[1]


class ContextHeads(nn.Module):
    """Multi-head attention within one side, guided by the mean of its objects (Eqs. 6-8); a head has D hidden units."""

    def __init__(self, config: OanConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.temperature = config.lambda_intra
        self.context = nn.Linear(config.embed_dim, config.heads * config.embed_dim, bias=False)
        self.objects = nn.Linear(config.embed_dim, config.heads * config.embed_dim, bias=False)
        for layer in (self.context, self.objects):
            for weight in layer.weight.detach().chunk(config.heads):
                nn.init.xavier_uniform_(weight)

    def forward(self, objects: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(n, L, D) and (n,) lengths to the attended (n, K, D) and the weights (n, K, L)."""
        context = self.context(mean_of_items(objects, lengths)).tanh().unflatten(1, (self.heads, -1))
        hidden = self.objects(objects).tanh().unflatten(2, (self.heads, -1))
        logits = torch.einsum("nkd,nlkd->nlk", context, hidden)
        pooled, weights = attention_pool_weights(objects, self.temperature * logits, lengths)
        return pooled, weights
