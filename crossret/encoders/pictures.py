"""An encoder of pictures as the first part of a model: pictures to tokens, with gradients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from crossret.data.batches import Regions
from crossret.data.prepared import Prepared

if TYPE_CHECKING:
    from crossret.extraction.protocol import PictureEncoder


class PictureTokens(nn.Module):
    """The tokens of pictures, padded, in the place of region features.

    Parameters: those of the encoder's module, behind ``module.``. As long as none of them requires a gradient, it stays
    in evaluation mode: what is frozen draws nothing at random and counts nothing.

    Args:
        reader: the encoder.
    """

    def __init__(self, reader: PictureEncoder[Any]) -> None:
        super().__init__()
        self.reader = reader
        self.module = reader.module

    @property
    def is_trained(self) -> bool:
        """Whether any of its weights requires a gradient."""
        return any(weight.requires_grad for weight in self.module.parameters())

    def identity(self) -> dict[str, Any]:
        """What tells it from others but for its weights, by name, as JSON has it."""
        settings = json.dumps(self.reader.settings(), sort_keys=True)
        return {"encoder's settings": settings, "a trained encoder": self.is_trained}

    def train(self, mode: bool = True) -> PictureTokens:
        super().train(mode and self.is_trained)
        return self

    def forward(self, pictures: Prepared) -> Regions:
        """Tokens (n, R, D) of n pictures with boxes (n, R, 4) and lengths (n,), where the encoder's weights are."""
        tokens = self.reader.encode(pictures.items)
        assert tokens.boxes is not None
        device = tokens.values.device
        features = pad_sequence(list(tokens.values.split(tokens.lengths)), batch_first=True)
        boxes = pad_sequence(list(tokens.boxes.split(tokens.lengths)), batch_first=True)
        return Regions(features, boxes.to(device), lengths=torch.tensor(tokens.lengths, device=device))
