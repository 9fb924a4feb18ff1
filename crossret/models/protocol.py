"""Interface of models for training, evaluation and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from crossret.distributed import Share
from crossret.hyperparameters import ModelConfig
from crossret.models.attention import AttentionMap
from crossret.models.contributions import ScoreShares
from crossret.models.encoded import Encoded


class Matcher(Protocol):
    """A torch module that matches images and captions.

    Attributes:
        kind: the model's name in ``crossret.models.MODELS`` and in its files.
        config: its hyper-parameters.
    """

    kind: ClassVar[str]

    @property
    def config(self) -> ModelConfig: ...

    def encode_images(self, features: Tensor, lengths: Tensor | None = None, boxes: Tensor | None = None) -> Encoded:
        """(n, R, image_dim) float region features, with (n,) int64 counts where they differ, to n entries.

        ``boxes`` (n, R, 4) are the regions' x0, y0, x1, y1, where the data has them. A model that reads more of
        ``crossret.data.batches.Regions`` takes it by its name.
        """

    def encode_captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """(n, W) int64 word numbers, padded, and (n,) int64 counts, to n entries.

        A model whose config has a ``text_dim`` takes (n, W, text_dim) float, tokens of an encoder of texts.

        Whatever a model does not read of a long caption, by its ``max_words``, it cuts here.
        """

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores; (P,) for (P, 2) int64 pairs of (image, caption)."""

    def loss(
        self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None, share: Share | None = None
    ) -> dict[str, Tensor]:
        """Loss terms of a batch in which image i and caption i match; "loss" is the one to minimise.

        ``image_ids`` (n,) int64 tells which entries are of one image.

        Where several processes train together, entries are this one's ``share`` of the batch, of which it gathers what
        it needs from the others; the terms are shares, too, whose sums over the ranks are the batch's, with gradients
        that add up to the batch's. None is a batch that is all here.
        """

    def trains(self, parameter: str, epoch: int) -> bool:
        """Whether the parameter of this name is trained in this epoch, counted from 0."""

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """How P images are looked at beside as many captions, without gradient; none where the model does not attend.

        The first is the one by which the model is to be judged.
        """

    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares | None:
        """Shares of P images' scores with as many captions, without gradient; None where a score is no sum.

        Raises:
            ValueError: there are not as many images as captions.
        """

    # The part of torch.nn.Module that is used.
    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...


@contextmanager
def evaluating(model: Matcher) -> Iterator[None]:
    """The model in evaluation mode and without gradients; its mode is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
