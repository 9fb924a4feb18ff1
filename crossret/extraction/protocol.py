"""Interface of encoders of pictures and of texts: extraction knows only this of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from crossret.data.pictures import read_picture

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Tokens:
    """Tokens of some items, one after another, without padding.

    Attributes:
        values: (rows, D) floating point, where the encoder computed them.
        lengths: how many rows each item has, each at least 1.
        boxes: (rows, 4) float32 on the CPU, x0, y0, x1, y1 of each token in the pixels of its own picture; None of
            texts.
        spans: (rows, 2) int32, the characters of its own text, from the first to behind the last, of the word that each
            token is of or a part of; 0, 0 where it is of none; None of pictures, and of texts where it is not known.
    """

    values: Tensor
    lengths: list[int]
    boxes: Tensor | None = None
    spans: NDArray[np.int32] | None = None


class Encoder(ABC):
    """Makes tokens of pictures, or of texts.

    Attributes:
        name: the name that the user typed, by which errors begin.
        dim: D, numbers of a token.
        module: its weights.
    """

    name: str
    dim: int
    module: nn.Module

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings that the tokens depend on besides the weights, as JSON has them."""

    def files(self) -> dict[str, bytes]:
        """Files, by name, of a folder that ``load_picture_encoder``, or ``load_text_encoder``, reads as this encoder
        without its weights.

        Raises:
            ValueError: encoders of this kind are loaded with their weights alone.
        """
        raise ValueError(f"{self.name}: encoders of this kind only extract, no model is trained through them")

    def checkpoint_gradients(self) -> None:
        """Have the module keep, while it is trained, what its layers start from alone, and compute the rest again for
        the gradients: these are the same, in less memory and more time.

        Raises:
            ValueError: the module cannot.
        """
        # Modules of transformers have this method: newer ones by the first name, older ones by the second alone.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        enable: Any = next((getattr(self.module, name) for name in names if hasattr(self.module, name)), None)
        try:
            if enable is None:
                raise ValueError("its module has none")
            enable({"use_reentrant": False})
        except ValueError as error:
            raise ValueError(f"{self.name}: cannot compute activations again ({error})") from error


class PictureEncoder(Encoder, Generic[Prepared]):
    """Makes tokens of pictures."""

    def prepare_file(self, path: Path) -> Prepared:
        """The picture of a file as ``prepare`` makes it.

        Raises:
            OSError, ValueError: as ``read_picture``, or the encoder cannot take it; names the file.
        """
        picture = read_picture(path)
        try:
            return self.prepare(picture)
        except ValueError as error:
            raise ValueError(f"{path}: {self.name} cannot take it ({error})") from error

    @abstractmethod
    def prepare(self, picture: Image.Image) -> Prepared:
        """A picture in RGB as the encoder reads it, on the CPU; called by several threads at once.

        Raises:
            ValueError: the encoder cannot take this picture; does not name it.
        """

    @abstractmethod
    def encode(self, prepared: Sequence[Prepared]) -> Tokens:
        """Tokens of what ``prepare`` made, with gradients where torch has them on."""

    def encode_images(self, pictures: Sequence[Image.Image]) -> Tokens:
        """Tokens of pictures in RGB, as ``prepare`` and ``encode``."""
        return self.encode([self.prepare(picture) for picture in pictures])


@dataclass(frozen=True)
class PreparedText:
    """A text as an encoder reads it.

    Attributes:
        ids: (n,) int64, the numbers of its pieces.
        own: (n,) bool, which of them are no addition of the tokenizer: these become tokens.
        spans: (own, 2) int32, as ``Tokens.spans``.
    """

    ids: NDArray[np.int64]
    own: NDArray[np.bool_]
    spans: NDArray[np.int32]


class TextEncoder(Encoder):
    """Makes tokens of texts. One with ``files`` has ``prepare`` and ``encode``, too, and is trained with a model."""

    def prepare(self, text: str) -> PreparedText:
        """A text as the encoder reads it, on the CPU.

        Raises:
            ValueError: the tokenizer makes nothing of it; names it.
        """
        raise NotImplementedError

    def encode(self, prepared: Sequence[PreparedText]) -> Tokens:
        """Tokens of what ``prepare`` made, with gradients where torch has them on."""
        raise NotImplementedError

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> Tokens:
        """Tokens of texts, without padding and without what the tokenizer adds to every text.

        Raises:
            ValueError: a text has none; names it.
        """
