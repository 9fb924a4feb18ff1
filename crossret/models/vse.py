"""VSE++: Improving Visual-Semantic Embeddings with Hard Negatives (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from crossret.encoders import RegionEncoder, TokenEncoder, WordEncoder, l2_normalize
from crossret.hyperparameters import VseConfig
from crossret.losses import matching_loss
from crossret.models.base import Model, dot_products, mean_of_items
from crossret.models.encoded import Encoded
from crossret_kernels.extending import WORKSPACE_BYTES, recomputed, vector_length


class Vse(Model):
    """VSE++: one vector an image and one a caption, compared by their cosine or by their order; nothing attends.

    The image's is a linear map of the mean of its regions: with one region an image, as VSE++ itself has it, of that.
    The caption's is the state of a GRU at its last word; of a ``text_dim`` it is a linear map of the mean of its
    tokens, as the image's of its regions, without a GRU. Of an encoded item ``sequences`` (n, 1, D) are this vector.

    Parameters: ``image.fc.*``, ``text.embed.weight`` and ``text.rnn.*``; behind ``image.`` and ``text.`` the names are
    those of VSE++'s published checkpoints.
    """

    kind: ClassVar[str] = VseConfig.kind
    config: VseConfig

    def __init__(self, config: VseConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, normalize=config.image_norm)
        words = config.vocabulary_size, config.word_dim, config.embed_dim
        self.text = (
            WordEncoder(*words, bidirectional=False, normalize=False, layers=config.text_layers)
            if config.text_dim is None
            else TokenEncoder(config.text_dim, config.embed_dim)
        )
        self.matching_loss = matching_loss(config)

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        return self._encoded(self.image(mean_of_items(features, lengths)))

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        states = self.text(tokens, lengths)
        if self.config.text_dim is None:
            states = states[torch.arange(len(states), device=states.device), lengths - 1]
        else:
            states = mean_of_items(states, lengths)
        return self._encoded(l2_normalize(states))

    def _encoded(self, vectors: Tensor) -> Encoded:
        """Items of vectors (n, D), which become absolute values behind their normalisation."""
        if self.config.use_abs:
            vectors = vectors.abs()
        return Encoded(vectors[:, None], torch.ones(len(vectors), dtype=torch.int64, device=vectors.device))

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores by the measure, or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        compare = order_similarities if self.config.measure == "order" else dot_products
        return compare(images.sequences[:, 0], captions.sequences[:, 0], pairs)


def order_similarities(images: Tensor, captions: Tensor, pairs: Tensor | None) -> Tensor:
    """−‖max(0, c − i)‖₂ of images i (n_images, D) and captions c (n_captions, D), with gradient 0 where it is 0.

    A caption is to lie below its images in every dimension (Vendrov et al., 2016, whose penalty is the square).

    Args:
        images, captions: floating point.
        pairs: (P, 2) int64 of (image, caption); None is all with all.

    Returns:
        (n_images, n_captions), or (P,) of the pairs; all with all for as many images at a time as bounded memory holds,
        of which the backward pass makes the differences again.
    """
    if pairs is not None:
        return _violation(images[pairs[:, 0]], captions[pairs[:, 1]])
    size = max(1, WORKSPACE_BYTES // max(1, captions.nbytes))
    return torch.cat([recomputed(_violation, part[:, None], captions) for part in images.split(size)])


def _violation(images: Tensor, captions: Tensor) -> Tensor:
    return -vector_length((captions - images).relu())
