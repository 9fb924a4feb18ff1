"""What all models share: checks of their input, and the answers that most of them give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from crossret.data.batches import Batch, check_lengths
from crossret.distributed import Group, Share
from crossret.encoders import check_tokens, first_words
from crossret.hyperparameters import ModelConfig
from crossret.losses import TripletLoss
from crossret.models.attention import AttentionMap
from crossret.models.encoded import Encoded


class Model(nn.Module):
    """A model whose two encoders know nothing of each other; see ``crossret.models.protocol.Matcher``.

    A subclass has ``_images`` and ``_captions``, which encode checked input, and ``score``; its text encoder is
    ``text``, with an ``nn.Embedding`` named ``embed``, and its ``triplet_loss`` is all of its loss unless it has one.
    """

    kind: ClassVar[str]
    takes_backbone: ClassVar[bool] = False
    """Whether it may be made with a module that turns pixels into regions, its parameter ``backbone``."""
    config: ModelConfig
    triplet_loss: TripletLoss

    def encode_images(self, features: Tensor, lengths: Tensor | None = None, boxes: Tensor | None = None) -> Encoded:
        """Encode the regions of each image.

        Args:
            features: (n, R, image_dim) floating point.
            lengths: (n,) int64, regions in each image; None where all have R.
            boxes: (n, R, 4) floating point, x0, y0, x1, y1 of every region; None where they are not known.

        Raises:
            TypeError, ValueError: a shape or dtype does not fit, or a length is not in 1..R; names the argument and the
                image.
        """
        return self._images(*self._checked_images(features, lengths, boxes))

    def _checked_images(
        self, features: Tensor, lengths: Tensor | None, boxes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What ``encode_images`` takes, with lengths; raises as it does."""
        if not len(features):
            raise ValueError("features hold no images")
        if not features.is_floating_point():
            raise TypeError(f"features must be floating point, got {features.dtype}")
        if features.dim() != 3 or features.shape[2] != self.config.image_dim:
            raise ValueError(f"features must have shape (n, R, {self.config.image_dim}), got {tuple(features.shape)}")
        if lengths is None:
            lengths = torch.full((len(features),), features.shape[1], dtype=torch.int64, device=features.device)
        if lengths.shape != (len(features),):
            raise ValueError(f"lengths must have shape ({len(features)},), one an image, got {tuple(lengths.shape)}")
        check_lengths(lengths, features.shape[1])
        if boxes is not None and boxes.shape != (*features.shape[:2], 4):
            raise ValueError(f"boxes must have shape {(*features.shape[:2], 4)}, got {tuple(boxes.shape)}")
        return features, lengths, boxes

    def encode_captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """Encode each word in the context of its caption, of a longer one the first ``config.max_words``.

        Args:
            tokens: (n, W) int64 word numbers, <start> and <end> of each caption included.
            lengths: (n,) int64, words in each caption, these two included.

        Raises:
            TypeError, ValueError: a shape or dtype does not fit, a number is not in the vocabulary, or a length is not
                in 1..W; names the argument and the place.
        """
        check_tokens(tokens, self.config.vocabulary_size)
        if not len(tokens):
            raise ValueError("tokens hold no captions")
        if lengths.shape != (len(tokens),):
            raise ValueError(f"lengths must have shape ({len(tokens)},), one a caption, got {tuple(lengths.shape)}")
        check_lengths(lengths, tokens.shape[1])
        if self.config.max_words is not None:
            tokens, lengths = first_words(tokens, lengths, self.config.max_words)
        return self._captions(tokens, lengths)

    def forward(self, batch: Batch | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss terms of a batch in which image i and caption i match: what other training loops call.

        In training mode, where torch.distributed is initialised, negatives are those of all ranks' batches; the terms
        are then such that their mean over the ranks is the whole batch's, and the mean of the gradients, which
        DistributedDataParallel takes, its gradient.

        Args:
            batch: a ``crossret.data.Batch``, or its fields by name: ``regions`` and, as far as they are known,
                ``region_lengths``, ``boxes`` and ``clusters``, as ``encode_images`` takes them; ``tokens`` and
                ``lengths``, as ``encode_captions``; ``image_ids`` (n,) int64, as ``loss``.

        Returns:
            Scalars by name; "loss" is the one to minimise.

        Raises:
            TypeError: regions, tokens or lengths are missing. TypeError, ValueError: as what encodes.
        """
        device = next(self.parameters()).device
        fields = batch.fields() if isinstance(batch, Batch) else batch
        moved = {name: part.to(device) for name, part in fields.items()}
        missing = [name for name in ("regions", "tokens", "lengths") if name not in moved]
        if missing:
            raise TypeError(f"forward: {', '.join(missing)} missing from the batch")
        more = {name: moved[name] for name in ("boxes", "clusters") if name in moved}
        images = self.encode_images(moved["regions"], moved.get("region_lengths"), **more)
        captions = self.encode_captions(moved["tokens"], moved["lengths"])
        if not (self.training and torch.is_grad_enabled()):
            return self.loss(images, captions, moved.get("image_ids"))
        share = Share.of(Group.current(), len(images))
        terms = self.loss(images, captions, moved.get("image_ids"), share)
        return {name: term * share.group.size for name, term in terms.items()}

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """As ``crossret.models.protocol.Matcher.score``."""
        raise NotImplementedError

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """As ``crossret.models.protocol.Matcher.loss``: {"loss"}, the triplet loss of the scores, summed."""
        share = share or Share.whole(len(images))
        return {"loss": self.triplet_loss(self.score(images, captions.gathered(share)), image_ids, share=share)}

    def trains(self, parameter: str, epoch: int) -> bool:
        """Every parameter, from the first epoch on, but for word embeddings that are to stay as they start."""
        return not (self.config.freeze_words and parameter == "text.embed.weight")

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """No maps: the model does not attend."""
        return ()

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        raise NotImplementedError

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        raise NotImplementedError


def dot_products(images: Tensor, captions: Tensor, pairs: Tensor | None) -> Tensor:
    """Of vectors (n_images, D) and (n_captions, D): all (n_images, n_captions), or (P,) of the pairs (P, 2)."""
    if pairs is None:
        return images @ captions.T
    return (images[pairs[:, 0]] * captions[pairs[:, 1]]).sum(-1)


def mean_of_items(items: Tensor, lengths: Tensor) -> Tensor:
    """The mean of the valid rows of each item: (n, L, D) and (n,) to (n, D)."""
    valid = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
    return items.masked_fill(~valid[:, :, None], 0).sum(1) / lengths[:, None]
