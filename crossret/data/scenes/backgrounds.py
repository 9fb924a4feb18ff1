"""The grounds that scenes stand on: muted procedural textures, each a blend of two tones."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crossret.data.scenes.world import IMAGE_SIZE

Floats = NDArray[np.float32]

_FIELD_SIZE = 2 * IMAGE_SIZE
_TONES = {
    "sand": ((196, 172, 130), (226, 206, 168)),
    "grass": ((92, 116, 70), (140, 160, 102)),
    "water": ((84, 124, 148), (136, 170, 186)),
    "wood": ((128, 98, 72), (174, 142, 108)),
    "stone": ((118, 118, 122), (166, 164, 162)),
    "snow": ((196, 206, 220), (232, 236, 240)),
}


def draw_background(background: str, rng: np.random.Generator) -> Floats:
    """An image of (224, 224, 3) float32, 0 to 255, filled with one of the world's backgrounds."""
    dark, light = np.array(_TONES[background], dtype=np.float32) + rng.uniform(-7, 7, size=3).astype(np.float32)
    left, top = (int(value) for value in rng.integers(0, _FIELD_SIZE - IMAGE_SIZE, size=2))
    window = slice(top, top + IMAGE_SIZE), slice(left, left + IMAGE_SIZE)
    phase = rng.uniform(0, 2 * np.pi, size=2).astype(np.float32)
    blend = _BLENDS[background](window, phase)
    return dark + np.clip(blend, 0, 1)[..., None] * (light - dark)


def _sand(window: tuple[slice, slice], phase: Floats) -> Floats:
    clouds = _noise(28, 28)[window]
    ripples = np.sin(_rows() * np.float32(0.33) + 5 * clouds + phase[0])
    return 0.5 + 0.2 * ripples + 0.14 * clouds + 0.16 * _noise(1, 1)[window]


def _grass(window: tuple[slice, slice], phase: Floats) -> Floats:
    return 0.5 + 0.24 * _noise(2, 14)[window] + 0.16 * _noise(1, 5)[window] + 0.14 * _noise(40, 40)[window]


def _water(window: tuple[slice, slice], phase: Floats) -> Floats:
    swell = _noise(48, 16)[window]
    waves = np.sin(_rows() * np.float32(0.24) + 3 * swell + phase[0]) * np.sin(
        _columns() * np.float32(0.11) + 3 * swell + phase[1]
    )
    return 0.45 + 0.3 * waves + 0.16 * swell


def _wood(window: tuple[slice, slice], phase: Floats) -> Floats:
    plank = (_rows() + 12 * phase[0]) / np.float32(37.3)
    seam = np.abs(plank - np.round(plank)) < 0.03
    tint = np.sin(np.round(plank + 0.5) * np.float32(2.4) + phase[1])
    return 0.5 + 0.22 * _noise(60, 2)[window] + 0.14 * tint + 0.08 * _noise(6, 1)[window] - 0.5 * seam


def _stone(window: tuple[slice, slice], phase: Floats) -> Floats:
    row = (_rows() + 9 * phase[0]) / np.float32(43.0)
    column = (_columns() + 9 * phase[1]) / np.float32(56.0) + np.float32(0.5) * (np.floor(row) % 2)
    gap_across, gap_down = np.abs(row - np.round(row)) * 43, np.abs(column - np.round(column)) * 56
    mortar = np.clip(2.2 - np.minimum(gap_across, gap_down), 0, 1)
    tint = np.sin(np.floor(row) * np.float32(1.9) + np.floor(column) * np.float32(2.7) + phase[0])
    return 0.55 + 0.16 * tint + 0.14 * _noise(6, 6)[window] + 0.1 * _noise(1, 1)[window] - 0.5 * mortar


def _snow(window: tuple[slice, slice], phase: Floats) -> Floats:
    return 0.62 + 0.34 * _noise(44, 30)[window] + 0.08 * _noise(2, 2)[window]


_BLENDS = {"sand": _sand, "grass": _grass, "water": _water, "wood": _wood, "stone": _stone, "snow": _snow}


def _rows() -> Floats:
    return np.arange(IMAGE_SIZE, dtype=np.float32)[:, None]


def _columns() -> Floats:
    return np.arange(IMAGE_SIZE, dtype=np.float32)[None, :]


@cache
def _noise(width: int, height: int) -> Floats:
    """A fixed field of smooth noise with grains of about these pixels; unit variance. Scenes take windows of it."""
    rng = np.random.default_rng((width, height))
    cells = rng.standard_normal((-(-_FIELD_SIZE // height) + 3, -(-_FIELD_SIZE // width) + 3), dtype=np.float32)
    size = (cells.shape[1] * width, cells.shape[0] * height)
    field = np.asarray(Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC))
    field = field[height : height + _FIELD_SIZE, width : width + _FIELD_SIZE]
    return np.ascontiguousarray((field - field.mean()) / field.std())
