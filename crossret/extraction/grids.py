"""Vision models of transformers whose tokens are cells of a grid: CLIP, SigLIP, ViT, DINO, Swin, ResNet, ConvNeXt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from crossret.extraction.hugging_face import files_of, load_module, load_processor, plain_settings
from crossret.extraction.placement import Placement, check_shape, placement_of
from crossret.extraction.protocol import PictureEncoder, Tokens

_STEPS = ("_preprocess", "resize", "center_crop", "pad")
_KNOWN_STEPS = (
    "DINOv3ViTImageProcessor",  # rescales ahead of resizing, which puts pixels nowhere else
    "ConvNextImageProcessor",  # crops as ``placement_of`` knows
    "ConvNextImageProcessorPil",
)


@dataclass(frozen=True)
class Family:
    """How the last hidden state of a family of models is a grid.

    Attributes:
        prefix: how many tokens stand before the grid, by the model's configuration: CLS and registers.
        merged: how many patches a token's side has, likewise: Swin merges them by two and two.
        pads: whether what is less than a token at the right and below is padded to one, not dropped.
        patch: pixels of a patch's side, or of its height and width, by the configuration.
        dim: numbers of a token, likewise.
        is_map: whether the hidden state is (D, rows, columns) of a picture, not (tokens, D).
    """

    prefix: Callable[[Any], int]
    merged: Callable[[Any], int] = lambda config: 1
    pads: bool = False
    patch: Callable[[Any], int | tuple[int, int]] = lambda config: config.patch_size
    dim: Callable[[Any], int] = lambda config: config.hidden_size
    is_map: bool = False


_CLS = Family(lambda config: 1)
_NONE = Family(lambda config: 0)
_REGISTERS = Family(lambda config: 1 + config.num_register_tokens)
_SWIN = Family(lambda config: 0, lambda config: 2 ** (len(config.depths) - 1), pads=True)
_CONVNEXT = Family(
    lambda config: 0,
    lambda config: 2 ** (len(config.hidden_sizes) - 1),
    dim=lambda config: config.hidden_sizes[-1],
    is_map=True,
)
_RESNET = replace(_CONVNEXT, pads=True, patch=lambda config: 8 if config.downsample_in_first_stage else 4)

FAMILIES: Mapping[str, Family] = {
    "clip": _CLS,
    "clip_vision_model": _CLS,
    "siglip": _NONE,
    "siglip_vision_model": _NONE,
    "vit": _CLS,
    "dinov2": _CLS,
    "dinov2_with_registers": _REGISTERS,
    "dinov3_vit": _REGISTERS,
    "swin": _SWIN,
    "swinv2": _SWIN,
    "resnet": _RESNET,
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
}
"""Families by the ``model_type`` of config.json. SigLIP 2 for pictures of one size is "siglip"."""


@dataclass(frozen=True)
class Pixels:
    """A picture as a model reads it: (3, H, W) float32, and where that lies in the picture."""

    values: Tensor
    placement: Placement


class GridEncoder(PictureEncoder[Pixels]):
    """The last hidden state of a vision model, without CLS and register tokens, and the cells of the picture.

    It is as the library gives it: normalised by the model's last layer norm but for CLIP, whose last norm belongs to
    its CLS token alone, and for ResNet and ConvNeXt, which have none or one of their mean. Tokens of cells that hold
    nothing of the picture, where the processor padded it, are left out.

    Args:
        name: a folder, or a model of the Hub.
        family: form of its hidden state.
        weights: whether to load them, not to have random ones.

    Attributes:
        name, dim, module: as those of ``PictureEncoder``.

    Raises:
        ValueError: it cannot be loaded, or its image processor does with pictures what is not known; names it.
    """

    def __init__(self, name: str, family: Family, *, weights: bool = True) -> None:
        self.name = name
        self.module = load_module(name, "vision_model", weights=weights)
        self.processor = load_processor(name)
        check_processor(name, self.processor)
        config: Any = self.module.config
        self.dim = family.dim(config)
        patch = family.patch(config)
        height, width = (patch, patch) if isinstance(patch, int) else patch
        merged = family.merged(config)
        self._cell = height * merged, width * merged
        self._prefix, self._pads, self._is_map = family.prefix(config), family.pads, family.is_map

    def files(self) -> dict[str, bytes]:
        return files_of(self.module, self.processor)

    def settings(self) -> dict[str, Any]:
        return {"processor": plain_settings(self.processor.to_dict())}

    def prepare(self, picture: Image.Image) -> Pixels:
        check_shape(*picture.size)
        placement, size = placement_of(self.processor, *picture.size)
        values = self.processor(picture, return_tensors="pt")["pixel_values"][0]
        if tuple(values.shape[1:]) != size:
            raise ValueError(f"its processor made {tuple(values.shape[1:])} of it, where {size} was expected")
        return Pixels(values, placement)

    def encode(self, prepared: Sequence[Pixels]) -> Tokens:
        """Tokens of pictures, which may be of several sizes where the model takes them."""
        values: list[Tensor] = [torch.empty(0)] * len(prepared)
        for size in dict.fromkeys(item.values.shape for item in prepared):
            places = [place for place, item in enumerate(prepared) if item.values.shape == size]
            grid = self._grid(torch.stack([prepared[place].values for place in places]))
            for place, tokens in zip(places, grid, strict=True):
                values[place] = tokens
        return on_cells(values, [item.placement for item in prepared], self._cell)

    def _grid(self, pixels: Tensor) -> Tensor:
        """(n, rows, columns, D) of (n, 3, H, W)."""
        (height, width), (cell_height, cell_width) = pixels.shape[2:], self._cell
        rows, columns = height // cell_height, width // cell_width
        if self._pads:
            rows, columns = -(-height // cell_height), -(-width // cell_width)
        try:
            hidden: Tensor = self.module(pixel_values=pixels.to(device_of(self.module))).last_hidden_state
        except ValueError as error:  # a processor may make another size than the model has positions for
            raise ValueError(f"{self.name}: {error}") from error
        if self._is_map:
            hidden = hidden.flatten(2).mT
        if hidden.shape[1] != self._prefix + rows * columns:
            raise ValueError(
                f"{self.name}: {hidden.shape[1]} tokens are no {rows} x {columns} grid behind {self._prefix} others"
            )
        return hidden[:, self._prefix :].unflatten(1, (rows, columns))


def on_cells(grids: Sequence[Tensor], placements: Sequence[Placement], cell: tuple[float, float]) -> Tokens:
    """Tokens of grids (rows, columns, D), an entry a picture, whose cells have this height and width in pixels."""
    values, boxes = [], []
    for grid, placement in zip(grids, placements, strict=True):
        rows, columns = grid.shape[:2]
        corners, inside = placement.boxes(rows, columns, *cell)
        values.append(grid.flatten(0, 1)[inside.to(grid.device)])
        boxes.append(corners[inside])
    return Tokens(torch.cat(values), [len(part) for part in boxes], torch.cat(boxes))


def device_of(module: nn.Module) -> torch.device:
    """Where a module's weights are."""
    return next(module.parameters()).device


def check_processor(name: str, processor: Any) -> None:
    """Raise a ValueError where an image processor does more to pictures than resize, crop in the middle and pad."""
    from transformers.image_processing_backends import PilBackend, TorchvisionBackend

    backends: tuple[Any, ...] = (PilBackend, TorchvisionBackend)
    kind: Any = type(processor)
    plain = any(all(getattr(kind, step) is getattr(backend, step) for step in _STEPS) for backend in backends)
    if not plain and kind.__name__ not in _KNOWN_STEPS:
        raise ValueError(f"{name}: its pictures are prepared by {kind.__name__}, and where it puts them is not known")
    try:
        placement_of(processor, 64, 48)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
