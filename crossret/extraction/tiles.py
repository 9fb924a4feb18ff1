"""Where the vectors of a picture lie that Idefics3's processor cuts into tiles, with the whole of it behind them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from crossret.extraction.placement import Placement


def cuts_tiles(processor: Any) -> bool:
    """Whether a processor of transformers, of texts and pictures, cuts pictures into tiles, or could.

    Raises:
        ValueError: it does so otherwise than Idefics3's, or cannot prepare pictures alone.
    """
    of_pictures = processor.image_processor
    if not hasattr(of_pictures, "do_image_splitting"):
        return False
    kind = type(of_pictures).__name__
    known = kind in ("Idefics3ImageProcessor", "Idefics3ImageProcessorPil") and of_pictures.do_resize
    # From 4,096 pixels on it resizes once more.
    if not known or of_pictures.size["longest_edge"] > 4096 or not hasattr(processor, "process_images"):
        raise ValueError(f"{kind} cuts pictures into tiles, and where its vectors lie is not known")
    return True


def tiles_of(processor: Any, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of the tiles of a picture of ``width`` × ``height``; (0, 0) where it is read as a whole alone.

    It is resized to the processor's longest edge, then both sides are stretched to multiples of a tile's.
    """
    if not processor.do_image_splitting:
        return 0, 0
    side, longest = processor.max_image_size["longest_edge"], processor.size["longest_edge"]
    wide = width >= height

    def shorter(longer: int, ratio: float) -> int:
        return int(longer / ratio) if wide else int(longer * ratio)

    short = shorter(longest, width / height)
    short = max(1, short + short % 2)
    many = math.ceil(longest / side)
    few = math.ceil(shorter(many * side, longest / short if wide else short / longest) / side)
    if many * few <= 1:
        return 0, 0
    return (few, many) if wide else (many, few)


def tile_boxes(rows: int, columns: int, cells: int, width: int, height: int) -> Tensor:
    """Boxes of ``cells`` × ``cells`` vectors a tile, tile by tile, and of as many of the whole picture behind them.

    Returns:
        (rows · columns · cells² + cells², 4) float32 x0, y0, x1, y1 in the picture's pixels.
    """
    whole, _ = Placement(width, height, cells, cells).boxes(cells, cells, 1, 1)
    if not rows:
        return whole
    down, across = rows * cells, columns * cells
    fine, _ = Placement(width, height, across, down).boxes(down, across, 1, 1)
    of_tiles = fine.view(rows, cells, columns, cells, 4).transpose(1, 2).reshape(-1, 4)
    return torch.cat([of_tiles, whole])
