"""Encoders of pictures and of texts as the first parts of a model: pictures and texts to tokens, with gradients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from crossret.data.batches import Regions
from crossret.data.prepared import Prepared

if TYPE_CHECKING:
    from crossret.extraction.protocol import Encoder, PictureEncoder, TextEncoder


class PretrainedPart(nn.Module):
    """An encoder that others trained.

    Parameters: those of the encoder's module, behind ``module.``. As long as none of them requires a gradient, it stays
    in evaluation mode: what is frozen draws nothing at random and counts nothing.

    Args:
        reader: the encoder.
    """

    def __init__(self, reader: Encoder) -> None:
        super().__init__()
        self.module = reader.module

    @property
    def is_trained(self) -> bool:
        """Whether any of its weights requires a gradient."""
        return any(weight.requires_grad for weight in self.module.parameters())

    def train(self, mode: bool = True) -> PretrainedPart:
        super().train(mode and self.is_trained)
        return self


class PictureTokens(PretrainedPart):
    """The tokens of pictures, padded, in the place of region features."""

    def __init__(self, reader: PictureEncoder[Any]) -> None:
        super().__init__(reader)
        self.reader = reader

    def forward(self, pictures: Prepared) -> Regions:
        """Tokens (n, R, D) of n pictures with boxes (n, R, 4) and lengths (n,), where the encoder's weights are."""
        tokens = self.reader.encode(pictures.items)
        assert tokens.boxes is not None
        device = tokens.values.device
        features = pad_sequence(list(tokens.values.split(tokens.lengths)), batch_first=True)
        boxes = pad_sequence(list(tokens.boxes.split(tokens.lengths)), batch_first=True)
        return Regions(features, boxes.to(device), lengths=torch.tensor(tokens.lengths, device=device))


class TextTokens(PretrainedPart):
    """The tokens of texts, padded, in the place of words' embeddings."""

    def __init__(self, reader: TextEncoder) -> None:
        super().__init__(reader)
        self.reader = reader

    def forward(self, texts: Prepared) -> Tensor:
        """Tokens (n, W, D) of n texts, zero behind each one's, where the encoder's weights are."""
        tokens = self.reader.encode(texts.items)
        return pad_sequence(list(tokens.values.split(tokens.lengths)), batch_first=True)


def identity_of(parts: dict[str, PictureTokens | TextTokens]) -> dict[str, Any]:
    """Settings of a model's encoders and whether they are trained, by name, as JSON has them; no weights."""
    told: dict[str, Any] = {}
    for name, part in parts.items():
        called = name.replace("_", " ")
        told[f"{called}'s settings"] = json.dumps(part.reader.settings(), sort_keys=True)
        told[f"a trained {called}"] = part.is_trained
    return told
