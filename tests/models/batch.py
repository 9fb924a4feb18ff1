"""A small ragged batch, and models of every kind and variant for it whose parameters are all of order one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
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
_TRANSFORMER = {"text_encoder": "transformer", "transformer_layers": 1, "transformer_heads": 2}
# Of each variant its kind, hyper-parameters and attention maps.
SCORED: dict[str, tuple[str, dict[str, Any], str]] = {
    "scan": ("scan", {"cross_attention": "ensemble"}, "t2i i2t"),
    "scan t2i": ("scan", {"cross_attention": "t2i"}, "t2i"),
    "scan i2t": ("scan", {"cross_attention": "i2t"}, "i2t"),
    "scan sum_max_t2i": ("scan", {"cross_attention": "sum_max_t2i"}, "t2i"),
    "scan sum_max_i2t": ("scan", {"cross_attention": "sum_max_i2t"}, "i2t"),
    "sman": ("sman", {}, "two-steps"),
    "sman levels": ("sman", {"levels": 2}, "one-step"),
    "sman im": ("sman", {"levels": 2, "location": False, "intra_pair_weight": 0.0}, "one-step"),
    "sman sim": ("sman", {"alpha": 1.0}, "two-steps"),
    "han": ("han", {}, "t2i"),
    "han 0": ("han", {"layers": 0}, "t2i"),
    "han i2t": ("han", {"direction": "i2t"}, "i2t"),
    "han global": ("han", {"matching": "global"}, ""),
    "han clusters": ("han", {"clusters": 2}, "t2i"),
    "han transformer": ("han", _TRANSFORMER, "t2i"),
    "mhsan": ("mhsan", {}, "heads"),
    "mhsan both ways": ("mhsan", {"bidirectional": True, "diversity_squared": True}, "heads"),
    "oan": ("oan", {}, "t2i i2t heads"),
    "oan no inter": ("oan", {"inter_attention": False}, "heads"),
    "oan no intra": ("oan", {"intra_attention": False}, "t2i i2t"),
    "oan no attention": ("oan", {"inter_attention": False, "intra_attention": False}, ""),
    "oan lstm": ("oan", {"text_encoder": "lstm"}, "t2i i2t heads"),
    "vse": ("vse", {}, ""),
    "vse raw": ("vse", {"image_norm": False, "text_layers": 2, "negatives": "sum"}, ""),
    "vse order": ("vse", {"measure": "order", "use_abs": True}, ""),
    "laps": ("laps", {}, "t2i i2t"),
    "laps global": ("laps", {"global_token": True, "keep_ratio": 0.3}, "t2i i2t"),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (kind, fields) for name, (kind, fields, _) in SCORED.items()},
    "scan infonce": ("scan", {"loss": "infonce"}),
    "mhsan sigmoid": ("mhsan", {"loss": "sigmoid"}),
    "oan infonce": ("oan", {"loss": "infonce"}),
}
EVERY_VARIANT = pytest.mark.parametrize("variant", SCORED)
EVERY_LOSS = pytest.mark.parametrize("variant", VARIANTS)
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)
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


def of(variant: str, **fields: Any) -> Any:
    kind, changed = VARIANTS[variant]
    return make(kind, **{**changed, **fields})


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
