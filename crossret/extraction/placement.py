"""Where in a picture the pixels lie that an encoder reads: resized, cropped and padded ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LONGEST = 100  # times its shorter side that a picture's longer one has at most


@dataclass(frozen=True)
class Placement:
    """A picture of ``width`` × ``height``, resized, of which a window is read.

    Attributes:
        width, height: of the picture, in its own pixels.
        resized_width, resized_height: its size after resizing.
        left, top: the window's corner in the resized picture; negative where there is padding before it.
    """

    width: int
    height: int
    resized_width: int
    resized_height: int
    left: int = 0
    top: int = 0

    def boxes(self, rows: int, columns: int, cell_height: float, cell_width: float) -> tuple[Tensor, Tensor]:
        """The cells of a grid over the window, row by row from its corner, in the picture's own pixels.

        Cells end where the picture does.

        Returns:
            (rows · columns, 4) float32 x0, y0, x1, y1, and which of them have any of the picture, (rows · columns,).
        """
        x = _edges(columns, cell_width, self.left, self.width / self.resized_width, self.width)
        y = _edges(rows, cell_height, self.top, self.height / self.resized_height, self.height)
        corners = [x[:-1].repeat(rows), y[:-1].repeat_interleave(columns)]
        corners += [x[1:].repeat(rows), y[1:].repeat_interleave(columns)]
        boxes = torch.stack(corners, 1)
        return boxes.float(), (boxes[:, :2] < boxes[:, 2:]).all(dim=1)


def _edges(count: int, cell: float, start: int, scale: float, end: int) -> Tensor:
    return ((torch.arange(count + 1, dtype=torch.float64) * cell + start) * scale).clamp(0, end)


def check_shape(width: int, height: int) -> None:
    """Raise a ValueError of a picture so long that one whose shorter side is resized to a model's would fill memory."""
    if max(width, height) > _LONGEST * min(width, height):
        raise ValueError(f"{width} x {height} pixels: one side is more than {_LONGEST} times as long as the other")


def placement_of(processor: Any, width: int, height: int) -> tuple[Placement, tuple[int, int]]:
    """Where an image processor of transformers puts a picture that it resizes, then crops, then pads.

    Returns:
        The placement, and the height and width of what the processor makes.

    Raises:
        ValueError: the processor resizes to something else than a height and a width, or a shorter edge.
    """
    resized_height, resized_width = height, width
    if processor.do_resize:
        resized_height, resized_width = _resized(processor, width, height)
    left = top = 0
    made = resized_height, resized_width
    cropped = processor.crop_size if getattr(processor, "do_center_crop", False) else None
    if processor.do_resize and _crops(processor):
        cropped = dict.fromkeys(("height", "width"), processor.size["shortest_edge"])
    if cropped is not None:
        made = cropped["height"], cropped["width"]
        top, left = (resized_height - made[0]) // 2, (resized_width - made[1]) // 2
    if getattr(processor, "do_pad", False) and getattr(processor, "pad_size", None) is not None:
        made = processor.pad_size["height"], processor.pad_size["width"]  # at the right and below
    return Placement(width, height, resized_width, resized_height, left, top), made


def _resized(processor: Any, width: int, height: int) -> tuple[int, int]:
    size = dict(processor.size)
    if _crops(processor):
        size = {"shortest_edge": int(size["shortest_edge"] / processor.crop_pct)}
    elif hasattr(processor, "crop_pct"):
        size = dict.fromkeys(("height", "width"), size["shortest_edge"])
    if size.keys() == {"height", "width"}:
        return size["height"], size["width"]
    if size.keys() == {"shortest_edge"}:
        shorter = size["shortest_edge"]
        longer = int(shorter * max(width, height) / min(width, height))
        return (longer, shorter) if width <= height else (shorter, longer)
    raise ValueError(f"pictures are resized to {size}, and where they then lie is not known")


def _crops(processor: Any) -> bool:
    """Whether it is ConvNeXt's, and resizes pictures to more than it then crops; from 384 pixels on it makes them
    square.
    """
    return hasattr(processor, "crop_pct") and dict(processor.size).get("shortest_edge", 0) < 384
