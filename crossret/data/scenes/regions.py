"""The boxes of an image's regions: as a detector would propose them, framed well or not, or the cells of a grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossret.data.scenes.world import IMAGE_SIZE

Floats = NDArray[np.float32]

REGIONS = 12
GRID = 7  # cells of a side
LEAST_BACKGROUND = 2  # regions
TIGHT = (1.06, 1.22), 0.05  # scale of the object's box, shift as a share of its side
LOOSE = (1.3, 1.7), 0.15
BACKGROUND_SIDES = (32.0, 88.0)  # pixels
BACKGROUND_CANDIDATES = 6


def sample_boxes(object_boxes: Floats, rng: np.random.Generator) -> Floats:
    """Twelve boxes in random order: each object framed tightly, then loosely as far as they go, then background crops.

    Args:
        object_boxes: (objects, 4) float32, x0, y0, x1, y1 in pixels; at most ten objects.

    Returns:
        (12, 4) float32, inside the image and at least one pixel wide and high. A background crop is the one of a few
        random boxes that covers least of the objects; it may still touch one.
    """
    loose = min(len(object_boxes), REGIONS - LEAST_BACKGROUND - len(object_boxes))
    boxes = [_jitter(box, *TIGHT, rng) for box in object_boxes]
    boxes += [_jitter(box, *LOOSE, rng) for box in object_boxes[rng.permutation(len(object_boxes))[:loose]]]
    boxes += [_background_box(object_boxes, rng) for _ in range(REGIONS - len(boxes))]
    return np.array(boxes, dtype=np.float32)[rng.permutation(REGIONS)]


def grid_boxes() -> Floats:
    """The 7 x 7 cells of an image in raster order, each 32 x 32 pixels: (49, 4) float32 x0, y0, x1, y1."""
    side = IMAGE_SIZE / GRID
    corners = side * np.array([(column, row) for row in range(GRID) for column in range(GRID)], dtype=np.float32)
    return np.concatenate([corners, corners + np.float32(side)], axis=1)


def _jitter(box: Floats, scale: tuple[float, float], shift: float, rng: np.random.Generator) -> NDArray[np.float64]:
    sides = box[2:] - box[:2]
    centre = (box[:2] + box[2:]) / 2 + rng.uniform(-shift, shift, size=2) * sides
    half = sides * rng.uniform(*scale, size=2) / 2
    return np.clip(np.concatenate([centre - half, centre + half]), 0, IMAGE_SIZE)


def _background_box(object_boxes: Floats, rng: np.random.Generator) -> NDArray[np.float64]:
    sides = rng.uniform(*BACKGROUND_SIDES, size=(BACKGROUND_CANDIDATES, 2))
    corners = rng.uniform(0, 1, size=sides.shape) * (IMAGE_SIZE - sides)
    candidates = np.concatenate([corners, corners + sides], axis=1)
    return candidates[overlap_areas(candidates, object_boxes).sum(axis=1).argmin()]


def overlap_areas(boxes: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.floating]:
    """Areas in square pixels that every box (n, 4) shares with every other box (m, 4): (n, m)."""
    lower = np.maximum(boxes[:, None, :2], others[None, :, :2])
    upper = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.clip(upper - lower, 0, None).prod(axis=2)
