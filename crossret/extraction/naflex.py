"""SigLIP 2 of flexible sizes (NaFlex): as many patches as a picture's shape gives, without the padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from crossret.extraction.grids import device_of, on_cells
from crossret.extraction.hugging_face import files_of, load_module, load_processor, plain_settings
from crossret.extraction.placement import Placement
from crossret.extraction.protocol import PictureEncoder, Tokens

NAFLEX = ("siglip2", "siglip2_vision_model")
"""The ``model_type`` of config.json."""


@dataclass(frozen=True)
class Patches:
    """A picture as the model reads it.

    Attributes:
        values: (P, 3 · patch²) float32, padded.
        mask: (P,) int32, 1 of a patch and 0 of padding.
        shape: (2,) int64, rows and columns of patches.
        size: width and height of the picture.
    """

    values: Tensor
    mask: Tensor
    shape: Tensor
    size: tuple[int, int]


class NaFlexEncoder(PictureEncoder[Patches]):
    """The last hidden state of SigLIP 2's vision tower; its padding mask becomes lengths, its patch grid the boxes.

    Pictures keep their shape: each is resized to at most so many patches as its processor's ``max_num_patches`` says.

    Args:
        name: a folder, or a model of the Hub.
        weights: whether to load them, not to have random ones.

    Attributes:
        name, dim, module: as those of ``PictureEncoder``.

    Raises:
        ValueError: it cannot be loaded; names it.
    """

    def __init__(self, name: str, *, weights: bool = True) -> None:
        self.name = name
        self.module = load_module(name, "vision_model", weights=weights)
        self.processor = load_processor(name)
        config: Any = self.module.config
        self.dim: int = config.hidden_size
        self.patch: int = config.patch_size
        if "Siglip2ImageProcessor" not in type(self.processor).__name__ or self.processor.patch_size != self.patch:
            raise ValueError(
                f"{name}: needs a Siglip2ImageProcessor with patches of {self.patch} pixels, and has "
                f"{type(self.processor).__name__}"
            )

    def files(self) -> dict[str, bytes]:
        return files_of(self.module, self.processor)

    def settings(self) -> dict[str, Any]:
        return {"processor": plain_settings(self.processor.to_dict())}

    def prepare(self, picture: Image.Image) -> Patches:
        made = self.processor(picture, return_tensors="pt")
        return Patches(
            made["pixel_values"][0], made["pixel_attention_mask"][0], made["spatial_shapes"][0], picture.size
        )

    def encode(self, prepared: Sequence[Patches]) -> Tokens:
        device = device_of(self.module)
        hidden = self.module(
            pixel_values=torch.stack([item.values for item in prepared]).to(device),
            pixel_attention_mask=torch.stack([item.mask for item in prepared]).to(device),
            spatial_shapes=torch.stack([item.shape for item in prepared]).to(device),
        ).last_hidden_state
        grids, placements = [], []
        for item, tokens in zip(prepared, hidden, strict=True):
            rows, columns = item.shape.tolist()
            grids.append(tokens[: rows * columns].unflatten(0, (rows, columns)))
            placements.append(Placement(*item.size, columns * self.patch, rows * self.patch))
        return on_cells(grids, placements, (self.patch, self.patch))
