"""MHSAN: Multi-Head Self-Attention Network for Visual Semantic Embedding (Park et al.)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from crossret.data.prepared import Prepared
from crossret.distributed import Share
from crossret.encoders import SruEncoder, TokenEncoder, l2_normalize, xavier_linear
from crossret.hyperparameters import MhsanConfig
from crossret.losses import DiversityLoss, matching_loss
from crossret.models.attention import AttentionMap, paired
from crossret.models.base import Model, dot_products
from crossret.models.encoded import Encoded
from crossret_kernels import attention_pool_weights

_EMBEDDING = "embedding"


class Mhsan(Model):
    """MHSAN: heads attend within the image and within the caption; either becomes one vector of a joint space.

    ``sequences`` (n, L, r) of encoded items are the weights of the r heads on their regions or words, and
    ``vectors["embedding"]`` (n, D) is what scores are made of.

    With a ``text_dim`` tokens of captions pass a linear layer to ``feature_dim``, as regions do, in the place of
    embedding and SRUs; the heads of either side stay.

    Args:
        config: the hyper-parameters.
        backbone: a module from pixels (n, 3, H, W) to a feature map (n, image_dim, h, w), such as a ResNet without its
            last layers; images are then given to ``encode_images`` as pixels. Its weights and buffers are saved with
            the model's, but not what it is: ``load_model`` takes one like it.
    """

    kind: ClassVar[str] = MhsanConfig.kind
    takes_backbone: ClassVar[bool] = True
    config: MhsanConfig

    def __init__(self, config: MhsanConfig, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.image = xavier_linear(config.image_dim, config.feature_dim)
        words = config.vocabulary_size, config.word_dim, config.feature_dim
        self.text = (
            SruEncoder(
                *words, layers=config.text_layers, bidirectional=config.bidirectional, dropout=config.text_dropout
            )
            if config.text_dim is None
            else TokenEncoder(config.text_dim, config.feature_dim)
        )
        self.image_heads = SelfAttention(config, torch.relu)
        self.text_heads = SelfAttention(config, torch.tanh)
        self.matching_loss = matching_loss(config, reduction="mean")
        self.diversity_loss = DiversityLoss(squared=config.diversity_squared)

    def encode_images(
        self, features: Tensor | Prepared, lengths: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        """Encode images as ``Model.encode_images``; for a backbone ``features`` may be pixels, (n, 3, H, W) float.

        The feature map's places are the regions then, row by row.
        """
        if self.backbone is not None and isinstance(features, Tensor) and features.dim() == 4:
            # Frozen, it changes nothing: not the statistics of its normalisations either.
            self.backbone.train(self.training and any(weight.requires_grad for weight in self.backbone.parameters()))
            features = self.backbone(features).flatten(2).mT
        return super().encode_images(features, lengths, boxes)

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        return self.image_heads(self.image(features), lengths)

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return self.text_heads(self.text(tokens, lengths), lengths)

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) cosines of the joint space, or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        return dot_products(images.vectors[_EMBEDDING], captions.vectors[_EMBEDDING], pairs)

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Eq. 3: {"loss", "triplet", "diversity"}, means over a batch in which image i and caption i match.

        Another ``config.loss`` stands in the place of "triplet".
        """
        share = share or Share.whole(len(images))
        matching = self.matching_loss(self.score(images, captions.gathered(share)), image_ids, share=share)
        of_images, of_captions = (self.diversity_loss(side.sequences, total=share.total) for side in (images, captions))
        diversity = of_images + of_captions
        loss = matching + self.config.diversity_weight * diversity
        return {"loss": loss, self.config.loss: matching, "diversity": diversity}

    def trains(self, parameter: str, epoch: int) -> bool:
        """Section 3.5's stages: the image's projection from the start, the text and the rest of the image later.

        Parameters of the loss are trained from the start.
        """
        if not super().trains(parameter, epoch):
            return False
        if parameter.startswith(("image_heads.project.", "matching_loss.")):
            return True
        text = parameter.startswith(("text.", "text_encoder.", "text_heads."))
        return epoch >= (self.config.text_from_epoch if text else self.config.image_from_epoch)

    @torch.no_grad()
    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """The heads of either side (Figs. 3-5)."""
        paired(images, captions)
        weights, word_weights = (side.sequences.detach().mT for side in (images, captions))
        names = tuple(f"head {number}" for number in range(1, self.config.heads + 1))
        return (AttentionMap("heads", weights, queries=names, word_weights=word_weights),)


class SelfAttention(nn.Module):
    """Multi-head self-attention and the projection to the joint space (Eqs. 1, 2), for either side.

    Section 3.5 has dropout "on the MLP of self-attention mechanism and the projection layer" and does not say where; as
    in the published code it is of their inputs. What is pooled are the features themselves, nothing left out.

    Args:
        config: the model's.
        activation: of the hidden units, ReLU for images and tanh for text.
    """

    def __init__(self, config: MhsanConfig, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.hidden = nn.Linear(config.feature_dim, config.attention_dim, bias=False)
        self.heads = nn.Linear(config.attention_dim, config.heads, bias=False)
        self.project = nn.Linear(config.heads * config.feature_dim, config.embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        for layer in (self.hidden, self.heads, self.project):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, features: Tensor, lengths: Tensor) -> Encoded:
        """(n, L, feature_dim) and (n,) int64 lengths to n entries."""
        logits = self.heads(self.activation(self.hidden(self.dropout(features))))
        pooled, weights = attention_pool_weights(features, logits, lengths)
        embedding = l2_normalize(self.project(self.dropout(pooled.flatten(1).to(features.dtype))))
        return Encoded(weights.mT, lengths, {_EMBEDDING: embedding})
