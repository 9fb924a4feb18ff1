"""A small ragged batch, and models of every kind for it whose parameters are all of order one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from crossret.models import MODELS
from crossret.models.encoded import Encoded

SIZES: dict[str, Any] = {"image_dim": 6, "vocabulary_size": 11, "embed_dim": 8, "word_dim": 5}
SMALL: dict[str, dict[str, Any]] = {
    "scan": {},
    "sman": {},
    "han": {"heads": 2},
    "mhsan": {"feature_dim": 8, "attention_dim": 5, "heads": 3, "text_layers": 2},
    "oan": {"heads": 3},
    "vse": {},
    "laps": {"aggregated": 3},
}
_RANDOM = torch.Generator().manual_seed(1)
FEATURES = torch.randn(3, 4, 6, generator=_RANDOM)
REGION_LENGTHS = torch.tensor([4, 2, 3])
BOXES = torch.rand(3, 4, 4, generator=_RANDOM)
TOKENS = torch.randint(0, 11, (3, 5), generator=_RANDOM)
LENGTHS = torch.tensor([5, 1, 3])


def make(kind: str, **fields: Any) -> Any:
    """In evaluation mode. Parameters are drawn anew: biases and gains that start from 0 and 1 would hide mistakes."""
    config_class, model_class = MODELS[kind]
    model = model_class(config_class(**{**SIZES, **SMALL[kind], **fields})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model


def double(model: Any) -> Any:
    """The same model in float64."""
    return copy.deepcopy(model).double()


def encode(
    model: Any,
    features: Tensor = FEATURES,
    region_lengths: Tensor = REGION_LENGTHS,
    boxes: Tensor | None = BOXES,
    tokens: Tensor = TOKENS,
    lengths: Tensor = LENGTHS,
) -> tuple[Encoded, Encoded]:
    """The images and captions of a batch, in the model's dtype."""
    dtype = next(model.parameters()).dtype
    return model.encode_images(features.to(dtype), region_lengths, boxes), model.encode_captions(tokens, lengths)


def items(features: Tensor, lengths: Tensor) -> list[Tensor]:
    """Each item's own rows, in float64."""
    return [rows[:length].double() for rows, length in zip(features, lengths.tolist(), strict=True)]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())
