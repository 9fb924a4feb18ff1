"""The outlines of the shapes, as signed distances, so that one rule anti-aliases them all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def signed_distance(shape: str, x: Floats, y: Floats) -> Floats:
    """Distance to a shape's outline, negative inside; exact near the outline up to its corners.

    ``x`` and ``y`` (downwards) are coordinates in which the shape fits in the unit circle round the origin.
    """
    match shape:
        case "circle":
            return np.hypot(x, y) - np.float32(0.92)
        case "ring":
            return np.abs(np.hypot(x, y) - np.float32(0.72)) - np.float32(0.23)
        case "square":
            return np.maximum(np.abs(x), np.abs(y)) - np.float32(0.76)
        case "triangle":
            return _folded(x, y, corners=3, corner_radius=1.0, notch_radius=0.5)
        case "star":
            return _folded(x, y, corners=5, corner_radius=1.0, notch_radius=0.45)
        case "cross":
            long, short = np.float32(0.88), np.float32(0.3)
            return np.minimum(_box(x, y, long, short), _box(x, y, short, long))
        case "crescent":
            bite = np.float32(0.74) - np.hypot(x - np.float32(0.46), y)
            return np.maximum(np.hypot(x, y) - np.float32(0.94), bite)
        case "heart":
            return _heart(x, y)
    raise ValueError(f"shape must be one of the world's shapes, got {shape!r}")


def _box(x: Floats, y: Floats, half_width: np.float32, half_height: np.float32) -> Floats:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _folded(x: Floats, y: Floats, corners: int, corner_radius: float, notch_radius: float) -> Floats:
    """A star with its first corner upwards: every sector is folded onto one, whose outline is a single edge.

    A notch radius of corner_radius * cos(pi / corners) makes it the regular polygon.
    """
    half = np.pi / corners
    angle: Floats = np.arctan2(x, -y)
    angle = np.abs(angle - np.round(angle / np.float32(2 * half)) * np.float32(2 * half))
    radius: Floats = np.hypot(x, y)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    # The edge runs from the corner (corner_radius, 0) to the notch, at the angle ``half``.
    edge_along, edge_across = notch_radius * np.cos(half) - corner_radius, notch_radius * np.sin(half)
    length = np.hypot(edge_along, edge_across)
    normal_along, normal_across = np.float32(edge_across / length), np.float32(-edge_along / length)
    return (along - np.float32(corner_radius)) * normal_along + across * normal_across


def _heart(x: Floats, y: Floats) -> Floats:
    """Two discs and the wedge that touches both and ends in the lower tip."""
    side = np.abs(x)
    lobe = np.hypot(side - np.float32(0.42), y + np.float32(0.3)) - np.float32(0.47)
    # The wedge's edge is the tangent of slope 1 to the lobe; its tip is on the axis below.
    root = np.float32(np.sqrt(0.5))
    tip = np.float32(-0.3 + 0.42 + 0.47 * np.sqrt(2))
    wedge = np.maximum((side + y - tip) * root, -(y + np.float32(0.3) - (side - np.float32(0.42))) * root)
    return np.minimum(lobe, wedge)
