"""Any backbone of timm: the last of its intermediate features, without prefix tokens."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor

from crossret.extraction.grids import Pixels, device_of, on_cells
from crossret.extraction.hugging_face import check_installed
from crossret.extraction.placement import Placement, check_shape
from crossret.extraction.protocol import PictureEncoder, Tokens


class TimmEncoder(PictureEncoder[Pixels]):
    """The last feature map of ``forward_intermediates(norm=True)``, from the top down, its cells spread evenly over
    the pixels that the model reads.

    Pictures are prepared as timm evaluates the model. Tokens of cells in the borders that it adds are left out.

    Args:
        name: the name that the user typed.
        source: its name for ``timm.create_model``.
        arguments: with which its folder says that timm is to make it.
        weights: whether to load them, not to have random ones.

    Attributes:
        name, dim, module: as those of ``PictureEncoder``.

    Raises:
        ValueError: timm or torchvision, which it imports, is missing; or there is no such model, or no weights of it;
            names it.
    """

    def __init__(
        self, name: str, source: str, arguments: Mapping[str, Any] | None = None, *, weights: bool = True
    ) -> None:
        for package in ("timm", "torchvision"):
            check_installed(package, "timm", f"{name}, a model of timm,")
        timm: Any = importlib.import_module("timm")
        data: Any = importlib.import_module("timm.data")
        self.name = name
        self._arguments = {key: value for key, value in (arguments or {}).items() if key != "num_classes"}
        said = _Said()
        logging.getLogger("timm").addHandler(said)
        try:
            module = timm.create_model(source, pretrained=weights, num_classes=0)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{name}: cannot be loaded ({' '.join(str(error).split())})") from error
        finally:
            logging.getLogger("timm").removeHandler(said)
        if weights and said.random is not None:
            raise ValueError(f"{name}: timm has no weights of it ({said.random})")
        if not hasattr(module, "forward_intermediates"):
            raise ValueError(f"{name}: timm gives no intermediate features of this kind of model")
        self.module = module.eval()
        self._config = data.resolve_model_data_config(module)
        self._steps = data.create_transform(**self._config, is_training=False).transforms
        self._version = timm.__version__
        with torch.inference_mode():
            self.dim: int = self._maps(torch.zeros(1, *self._config["input_size"])).shape[1]

    def files(self) -> dict[str, bytes]:
        models: Any = importlib.import_module("timm.models")
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "config.json")
            models._hub.save_config_for_hf(self.module, str(file), model_args=self._arguments or None)
            return {file.name: file.read_bytes()}

    def checkpoint_gradients(self) -> None:
        try:
            cast(Any, self.module).set_grad_checkpointing(True)
        except (AttributeError, AssertionError) as error:
            raise ValueError(f"{self.name}: cannot compute activations again ({error})") from error

    def settings(self) -> dict[str, Any]:
        return {"timm": self._version, "data": {key: str(value) for key, value in sorted(self._config.items())}}

    def prepare(self, picture: Image.Image) -> Pixels:
        check_shape(*picture.size)
        made: Any = picture
        left = top = 0
        resized = picture.size
        for step in self._steps:
            before = made.size if isinstance(made, Image.Image) else None
            made = step(made)
            if before is None or not isinstance(made, Image.Image) or made.size == before:
                continue
            kind = type(step).__name__
            if kind in ("Resize", "ResizeKeepRatio"):
                resized = made.size
            elif kind in ("CenterCrop", "CenterCropOrPad"):
                left, top = (_corner(kind, *sides) for sides in zip(before, made.size, strict=True))
            else:
                raise ValueError(f"timm's {kind} changes its size, and where its pixels then lie is not known")
        return Pixels(made, Placement(*picture.size, *resized, left, top))

    def encode(self, prepared: Sequence[Pixels]) -> Tokens:
        pixels = torch.stack([item.values for item in prepared]).to(device_of(self.module))
        maps = self._maps(pixels)
        cell = pixels.shape[2] / maps.shape[2], pixels.shape[3] / maps.shape[3]
        return on_cells(list(maps.movedim(1, 3)), [item.placement for item in prepared], cell)

    def _maps(self, pixels: Tensor) -> Tensor:
        """(n, D, rows, columns) of (n, 3, H, W)."""
        module: Any = self.module
        maps: Tensor = module.forward_intermediates(pixels, indices=1, norm=True, intermediates_only=True)[-1]
        return maps


class _Said(logging.Handler):
    """Whether timm, which only warns of it, left a model as it was initialised."""

    random: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "random initialization" in message or "cannot load weights" in message:
            self.random = message


def _corner(kind: str, before: int, after: int) -> int:
    """Where a crop in the middle begins; less than 0 where it pads instead. Rounded as torchvision and timm do."""
    if after > before and kind == "CenterCrop":
        return -((after - before) // 2)
    return round((before - after) / 2)
