"""What training, evaluation and pictures know of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from crossret.config import Config
from crossret.encoded import Encoded


@dataclass(frozen=True)
class ModelConfig(Config):
    """What every model's hyper-parameters begin with: the sizes of its input.

    Attributes:
        image_dim: length of a region's feature.
        vocabulary_size: number of words.
    """

    image_dim: int
    vocabulary_size: int


class Matcher(Protocol):
    """A torch module that matches images and captions.

    Attributes:
        kind: the model's name in ``crossret.models.MODELS`` and in its files.
        config: its hyper-parameters.
    """

    kind: ClassVar[str]

    @property
    def config(self) -> ModelConfig: ...

    def encode_images(self, features: Tensor, lengths: Tensor | None = None) -> Encoded:
        """(n, R, image_dim) float region features, with (n,) int64 counts where they differ, to n entries."""

    def encode_captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """(n, W) int64 word numbers, padded, and (n,) int64 counts, to n entries."""

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores; (P,) for (P, 2) int64 pairs of (image, caption)."""

    def loss(self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None) -> dict[str, Tensor]:
        """Loss terms of a batch in which image i and caption i match; "loss" is the one to minimise.

        ``image_ids`` (n,) int64 tells which entries are of one image.
        """

    # The part of torch.nn.Module that is used.
    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...
