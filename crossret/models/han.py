"""HAN: Heterogeneous Attention Network for Effective and Efficient Cross-modal Retrieval (Yu et al., SIGIR 2021)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from crossret.data.clustering import centres_of, cluster_regions
from crossret.data.prepared import Prepared
from crossret.encoders import RegionEncoder, TokenEncoder, TransformerEncoder, WordEncoder, xavier_linear
from crossret.hyperparameters import HanConfig
from crossret.hyperparameters.han import BERT_POSITIONS
from crossret.losses import matching_loss
from crossret.models.attention import AttentionMap, paired, word_map
from crossret.models.base import Model
from crossret.models.contributions import ITEMS, ScoreShares, SharePart
from crossret.models.encoded import Encoded
from crossret_kernels import HeterogeneousLayer, heterogeneous_attention_weights, heterogeneous_scores

_CLUSTER = "cluster"
_BERT_DROPOUT = 0.1  # in the text encoder transformer, which the paper takes from BERT


class Han(Model):
    """HAN: regions and words of a pair attend to all of both in heterogeneous layers, then they are matched.

    ``sequences`` (n, L, D) of encoded items are their regions or words, for global matching with the vector of the
    whole in front. ``vectors["cluster"]`` (n, R) int64 tells which centre stands for a region, where regions are
    clustered.

    With a ``text_dim`` tokens of captions pass a linear layer, as regions do, in the place of embedding and GRU or
    transformer; the heterogeneous layers and the matching stay.
    """

    kind: ClassVar[str] = HanConfig.kind
    config: HanConfig

    def __init__(self, config: HanConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, normalize=False)
        words = (config.vocabulary_size, config.word_dim, config.embed_dim)
        self.text: nn.Module
        if config.text_dim is not None:
            self.text = TokenEncoder(config.text_dim, config.embed_dim)
        elif config.text_encoder == "gru":
            self.text = WordEncoder(*words, normalize=False)
        else:
            self.text = TransformerEncoder(
                *words,
                layers=config.transformer_layers,
                heads=config.transformer_heads,
                dropout=_BERT_DROPOUT,
                longest=BERT_POSITIONS,
            )
        self.layers = nn.ModuleList(Layer(config.embed_dim) for _ in range(config.layers))
        if config.matching == "global":  # the tokens SEP of the image and CLS of the caption
            self.image_token = nn.Parameter(torch.empty(config.embed_dim).normal_(std=config.embed_dim**-0.5))
            self.text_token = nn.Parameter(torch.empty(config.embed_dim).normal_(std=config.embed_dim**-0.5))
        self.matching_loss = matching_loss(config)

    def encode_images(
        self,
        features: Tensor | Prepared,
        lengths: Tensor | None = None,
        boxes: Tensor | None = None,
        clusters: Tensor | None = None,
    ) -> Encoded:
        """Encode images as ``Model.encode_images``; ``clusters`` (n, R) int64 are numbers as ``cluster_regions`` gives.

        Where regions are clustered and these are not given, they are found here.

        Raises:
            TypeError, ValueError: as ``Model.encode_images`` and ``cluster_regions``; ``clusters`` are of another shape
                or out of range, or are given to a model without.
        """
        features, lengths, _ = self._checked_images(features, lengths, boxes)
        count = self.config.clusters
        if count is None:
            if clusters is not None:
                raise ValueError("clusters were given, but this model's clusters are None")
            return self._encoded(features, lengths, {})
        if clusters is None:
            clusters = cluster_regions(features, lengths, clusters=count)
        if clusters.dtype != torch.int64:
            raise TypeError(f"clusters must be int64, got {clusters.dtype}")
        if clusters.shape != features.shape[:2]:
            raise ValueError(f"clusters must have shape {tuple(features.shape[:2])}, got {tuple(clusters.shape)}")
        if not -1 <= int(clusters.min()) <= int(clusters.max()) < count:
            raise ValueError(f"clusters must be numbers below {count}, or -1 for no region")
        centres, counts = centres_of(features, clusters, count)
        return self._encoded(centres, counts, {_CLUSTER: clusters})

    def _encoded(self, features: Tensor, lengths: Tensor, vectors: dict[str, Tensor]) -> Encoded:
        regions, lengths = self._with_token(self.image(features), lengths, "image_token")
        return Encoded(regions, lengths, vectors)

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(*self._with_token(self.text(tokens, lengths), lengths, "text_token"))

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores (Eq. 1), or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        return heterogeneous_scores(**self._matched(images, captions), matching=self.config.matching, pairs=pairs)

    @torch.no_grad()
    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """Words over regions in the matching, after the layers; a region has its centre's. None of global matching."""
        pairs = paired(images, captions)
        if self.config.matching == "global":
            return ()
        _, weights, relevance = heterogeneous_attention_weights(**self._matched(images, captions), pairs=pairs)
        attention = word_map(self.config.direction, weights, relevance)
        if _CLUSTER not in images.vectors:
            return (attention,)
        clusters = images.vectors[_CLUSTER][:, None, :].expand(-1, attention.weights.shape[1], -1)
        weights = attention.weights.gather(2, clusters.clamp(min=0)).masked_fill(clusters < 0, 0)
        return (replace(attention, weights=weights),)

    @torch.no_grad()
    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares | None:
        """Shares of words (t2i) or regions (i2t), whose mean cosine is the score (Eq. 1); None of global matching.

        A centre's share is its regions' alike.
        """
        pairs, direction = paired(images, captions), self.config.direction
        if self.config.matching == "global":
            return None
        relevances = heterogeneous_attention_weights(**self._matched(images, captions), pairs=pairs).relevances
        counts = (captions if direction == "t2i" else images).lengths[:, None]
        values = relevances.double() / counts
        if direction == "i2t" and _CLUSTER in images.vectors:
            clusters = images.vectors[_CLUSTER]
            own, none = clusters.clamp(min=0), clusters < 0
            sizes = torch.zeros_like(values).scatter_add(1, own, (~none).double())
            relevances, values = (
                x.gather(1, own).masked_fill(none, 0) for x in (relevances, values / sizes.clamp(min=1))
            )
        part = SharePart(direction, ITEMS[direction], values, relevances)
        return ScoreShares.adding_up(self.score(images, captions, pairs), (part,))

    def _matched(self, images: Encoded, captions: Encoded) -> dict[str, Any]:
        config = self.config
        return {
            "regions": images.sequences,
            "words": captions.sequences,
            "region_lengths": images.lengths,
            "word_lengths": captions.lengths,
            "layers": [layer.parameters_of_layer() for layer in self.layers if isinstance(layer, Layer)],
            "heads": config.heads,
            "lambda_attention": config.lambda_attention,
            "direction": config.direction,
            "lambda_softmax": config.lambda_softmax,
        }

    def _with_token(self, items: Tensor, lengths: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Every item with the token of global matching in front of it."""
        if self.config.matching == "local":
            return items, lengths
        token: Tensor = getattr(self, name)
        return torch.cat([token.expand(len(items), 1, -1), items], 1), lengths + 1


class Layer(nn.Module):
    """A heterogeneous attention layer (Section 3.2)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (xavier_linear(embed_dim, embed_dim) for _ in range(4))
        self.norm = nn.LayerNorm(embed_dim)

    def parameters_of_layer(self) -> HeterogeneousLayer:
        """Parameters as ``heterogeneous_scores`` takes them."""
        linears = (self.query, self.key, self.value, self.output, self.norm)
        return HeterogeneousLayer(*(part for linear in linears for part in (linear.weight, linear.bias)))
