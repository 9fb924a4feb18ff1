"""Base of all models: checks of their input, and the answers that most of them give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from crossret.data.batches import Batch, Regions, check_lengths
from crossret.data.named_encoder import NamedEncoder
from crossret.data.prepared import Prepared
from crossret.distributed import Group, Share
from crossret.encoders import PictureTokens, TextTokens, check_tokens, first_words
from crossret.hyperparameters import ModelConfig
from crossret.losses import MatchingLoss
from crossret.models.attention import AttentionMap
from crossret.models.contributions import ScoreShares
from crossret.models.encoded import Encoded

if TYPE_CHECKING:
    from crossret.extraction.protocol import Encoder, PictureEncoder, TextEncoder


ENCODERS = ENCODER, TEXT_ENCODER = "encoder", "text_encoder"
"""The parts of a model that are pretrained encoders, of pictures and of texts."""


class Model(nn.Module):
    """A model whose two encoders know nothing of each other; see ``crossret.models.protocol.Matcher``.

    A subclass has ``_images`` and ``_captions``, which encode checked input, and ``score``; what reads captions is
    ``text``: of words with an ``nn.Embedding`` named ``embed``, of tokens a ``TokenEncoder``. Its ``matching_loss`` is
    all of its loss unless it has one.

    Attributes:
        encoder: of pictures, which the model then takes for features; there is none before ``read_pictures_by``.
        text_encoder: of texts, which it then takes for tokens; there is none before ``read_texts_by``.
        captions_by: encoder of the stored tokens of captions that it was trained on, where that is known.
    """

    kind: ClassVar[str]
    takes_backbone: ClassVar[bool] = False
    """Whether it may be made with a module that turns pixels into regions, its parameter ``backbone``."""
    config: ModelConfig
    encoder: PictureTokens
    text_encoder: TextTokens
    captions_by: NamedEncoder | None = None
    matching_loss: MatchingLoss

    def read_pictures_by(self, reader: PictureEncoder[Any]) -> None:
        """Make an encoder's module a part of the model, ``encoder``: trained, moved and saved with it.

        Raises:
            ValueError: the model has one, or a backbone, its ``image_dim`` is not the encoder's, or the encoder is of a
                kind that a model's files cannot hold.
        """
        self._check_reader(reader, "image_dim", "encoder", "backbone")
        self.encoder = PictureTokens(reader)

    def read_texts_by(self, reader: TextEncoder) -> None:
        """Make an encoder's module a part of the model, ``text_encoder``: trained, moved and saved with it.

        Raises:
            ValueError: the model has one, its ``text_dim`` is not the encoder's, or the encoder is of a kind that a
                model's files cannot hold.
        """
        self._check_reader(reader, "text_dim", TEXT_ENCODER)
        self.text_encoder = TextTokens(reader)

    def _check_reader(self, reader: Encoder, size: str, *parts: str) -> None:
        for part in parts:
            if getattr(self, part, None) is not None:
                raise ValueError(f"{reader.name}: the model has its own {part.replace('_', ' ')}")
        dim = getattr(self.config, size)
        if reader.dim != dim:
            raise ValueError(f"{reader.name}: its tokens have {reader.dim} numbers, but the model's {size} is {dim}")
        reader.files()  # which says where there are none

    def encode_images(
        self, features: Tensor | Prepared, lengths: Tensor | None = None, boxes: Tensor | None = None
    ) -> Encoded:
        """Encode the regions of each image.

        Args:
            features: (n, R, image_dim) floating point, or n pictures, prepared for the model's encoder.
            lengths: (n,) int64, regions in each image; None where all have R.
            boxes: (n, R, 4) floating point, x0, y0, x1, y1 of every region; None where they are not known.

        Raises:
            TypeError, ValueError: a shape or dtype does not fit, or a length is not in 1..R; names the argument and the
                image. ValueError: pictures, and the model has no encoder.
        """
        return self._images(*self._checked_images(features, lengths, boxes))

    def _checked_images(
        self, features: Tensor | Prepared, lengths: Tensor | None, boxes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Checked arguments of ``encode_images``, with lengths, and with tokens for pictures; raises as it does."""
        if not len(features):
            raise ValueError("features hold no images")
        features, boxes, _, lengths = tokens_of(self, Regions(features, boxes, lengths=lengths))
        assert isinstance(features, Tensor)
        if not features.is_floating_point():
            raise TypeError(f"features must be floating point, got {features.dtype}")
        if features.dim() != 3 or features.shape[2] != self.config.image_dim:
            raise ValueError(f"features must have shape (n, R, {self.config.image_dim}), got {tuple(features.shape)}")
        given = lengths is not None
        if lengths is None:
            lengths = torch.full((len(features),), features.shape[1], dtype=torch.int64, device=features.device)
        if lengths.shape != (len(features),):
            raise ValueError(f"lengths must have shape ({len(features)},), one an image, got {tuple(lengths.shape)}")
        if given:
            check_lengths(lengths, features.shape[1])
        if boxes is not None and boxes.shape != (*features.shape[:2], 4):
            raise ValueError(f"boxes must have shape {(*features.shape[:2], 4)}, got {tuple(boxes.shape)}")
        return features, lengths, boxes

    def encode_captions(self, tokens: Tensor | Prepared, lengths: Tensor) -> Encoded:
        """Encode each word in the context of its caption, of a longer one the first ``config.max_words``.

        Args:
            tokens: (n, W) int64 word numbers, <start> and <end> of each caption included; of a model with a
                ``config.text_dim`` (n, W, text_dim) floating point, what an encoder of texts made, or n texts, prepared
                for the model's own.
            lengths: (n,) int64, words or tokens in each caption, <start> and <end> included.

        Raises:
            TypeError, ValueError: a shape or dtype does not fit, a number is not in the vocabulary, or a length is not
                in 1..W; names the argument and the place. ValueError: texts, and the model has no encoder of them.
        """
        if isinstance(tokens, Prepared):
            part = pretrained_parts(self).get(TEXT_ENCODER)
            if part is None:
                raise ValueError(f"tokens are texts, but this {self.kind} has no encoder to read them")
            tokens = part(tokens)
        assert isinstance(tokens, Tensor)
        dim = self.config.text_dim
        if dim is None:
            check_tokens(tokens, self.config.vocabulary_size)
        elif not tokens.is_floating_point():
            raise TypeError(f"tokens must be floating point, got {tokens.dtype}")
        elif tokens.dim() != 3 or tokens.shape[2] != dim:
            raise ValueError(f"tokens must have shape (n, W, {dim}), got {tuple(tokens.shape)}")
        if not len(tokens):
            raise ValueError("tokens hold no captions")
        if lengths.shape != (len(tokens),):
            raise ValueError(f"lengths must have shape ({len(tokens)},), one a caption, got {tuple(lengths.shape)}")
        check_lengths(lengths, tokens.shape[1])
        most = self.config.max_words
        if most is not None and dim is None:
            tokens, lengths = first_words(tokens, lengths, most)
        elif most is not None:
            tokens, lengths = tokens[:, :most], lengths.clamp(max=most)
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
        """Scores: see ``crossret.models.protocol.Matcher.score``."""
        raise NotImplementedError

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Loss of the scores that ``config.loss`` names, {"loss"}: see ``crossret.models.protocol.Matcher.loss``."""
        share = share or Share.whole(len(images))
        return {"loss": self.matching_loss(self.score(images, captions.gathered(share)), image_ids, share=share)}

    def trains(self, parameter: str, epoch: int) -> bool:
        """Every parameter, from the first epoch on, but for word embeddings that are to stay as they start."""
        return not (self.config.freeze_words and parameter == "text.embed.weight")

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """No maps: the model does not attend."""
        return ()

    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares | None:
        """None: the score is no sum over parts of the image or the caption."""
        return None

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        raise NotImplementedError

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        raise NotImplementedError


def encoder_of(model: Any) -> PictureTokens | None:
    """The encoder through which a model reads pictures, if it has one."""
    return getattr(model, "encoder", None)


def text_reader_of(model: Any) -> TextEncoder | None:
    """The encoder through which a model reads texts, if it has one."""
    part = getattr(model, TEXT_ENCODER, None)
    return None if part is None else part.reader


def captions_by(model: Any) -> NamedEncoder | None:
    """Encoder of the stored tokens of captions that a model was trained on, where that is known."""
    return getattr(model, "captions_by", None)


def pretrained_parts(model: Any) -> dict[str, PictureTokens | TextTokens]:
    """The encoders that a model has, by name."""
    return {name: part for name in ENCODERS if (part := getattr(model, name, None)) is not None}


def tokens_of(model: Any, regions: Regions) -> Regions:
    """Regions that a model reads: of pictures the tokens that its encoder makes, with their boxes and lengths.

    Raises:
        ValueError: these are pictures, and the model has no encoder.
    """
    if not isinstance(regions.features, Prepared):
        return regions
    encoder = encoder_of(model)
    if encoder is None:
        raise ValueError(f"features are pictures, but this {model.kind} has no encoder to read them")
    made: Regions = encoder(regions.features)
    return made


def dot_products(images: Tensor, captions: Tensor, pairs: Tensor | None) -> Tensor:
    """Dot products of vectors (n_images, D), (n_captions, D): all (n_images, n_captions), or (P,) of pairs (P, 2)."""
    if pairs is None:
        return images @ captions.T
    return (images[pairs[:, 0]] * captions[pairs[:, 1]]).sum(-1)


def mean_of_items(items: Tensor, lengths: Tensor) -> Tensor:
    """The mean of the valid rows of each item: (n, L, D) and (n,) to (n, D)."""
    valid = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
    return items.masked_fill(~valid[:, :, None], 0).sum(1) / lengths[:, None]
