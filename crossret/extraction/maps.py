"""Feature maps of any module of torch, made by a function of an installed Python package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from crossret.extraction.grids import Pixels, device_of, on_cells
from crossret.extraction.placement import Placement, check_shape
from crossret.extraction.protocol import PictureEncoder, Tokens


class MapEncoder(PictureEncoder[Pixels]):
    """The cells of a feature map, from the top down, spread evenly over the picture, which is resized to one size.

    Args:
        name: its name in errors.
        module: the network, in evaluation mode.
        features: its map (n, D, rows, columns) of pixels (n, 3, height, width).
        size: height and width of the pixels.
        mean, std: of the three channels from 0 to 1, by which pixels are normalised; by default ImageNet's.

    Attributes:
        name, dim, module: as those of ``PictureEncoder``.

    Raises:
        ValueError: what ``features`` returns is no map.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        features: Callable[[Tensor], Tensor],
        size: tuple[int, int],
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        self.name, self.module, self._features, self._size = name, module, features, size
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)
        with torch.inference_mode():
            made = features(torch.zeros(1, 3, *size, device=device_of(module)))
        if made.dim() != 4:
            raise ValueError(f"{name}: its features have shape {tuple(made.shape)}, expected (n, D, rows, columns)")
        self.dim: int = made.shape[1]

    def settings(self) -> dict[str, Any]:
        return {"size": list(self._size), "mean": self._mean.tolist(), "std": self._std.tolist()}

    def prepare(self, picture: Image.Image) -> Pixels:
        check_shape(*picture.size)
        height, width = self._size
        resized = picture.resize((width, height), Image.Resampling.BICUBIC)
        values = (torch.from_numpy(np.array(resized)) / 255 - self._mean) / self._std
        return Pixels(values.movedim(2, 0), Placement(*picture.size, width, height))

    def encode(self, prepared: Sequence[Pixels]) -> Tokens:
        maps = self._features(torch.stack([item.values for item in prepared]).to(device_of(self.module)))
        cell = self._size[0] / maps.shape[2], self._size[1] / maps.shape[3]
        return on_cells(list(maps.movedim(1, 3)), [item.placement for item in prepared], cell)


def encoder_of_package(name: str) -> PictureEncoder[Any]:
    """The encoder that a function returns, called without arguments: "package.module:function".

    Raises:
        ValueError: there is no such function, or it returns no encoder; names it.
    """
    place, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(place), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name}: cannot be imported and called ({error})") from error
    if not isinstance(made, PictureEncoder):
        raise ValueError(f"{name}: returns {type(made).__name__}, which is no crossret.extraction.PictureEncoder")
    return made
