"""Region features: what a fixed bank of filters answers to the pixels of a crop.

All arithmetic up to the projection is on integers that float32 holds exactly, so the features of given pixels are the
same to the last bit whatever the BLAS, its threads and its blocking.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crossret.data.scenes.world import IMAGE_SIZE

Floats = NDArray[np.float32]

FEATURES = 256
CROP = 36  # pixels of the side that every crop is resized to
STRIDE = 2  # pixels between the centres of the filters
CELLS = 4  # along a side of the grid over which responses are averaged
BANK_SEED = 20180321

COLOUR_FILTERS = 32
COLOUR_SCALE = 16  # norm of a colour filter's integer weights
ORIENTATIONS = 8
EDGE_TAPS = 5  # pixels of a side of an edge filter
EDGE_PEAK = 15  # largest integer weight of an edge filter
EDGE_FLOOR = 60.0  # response below which a crop counts as flat instead of being amplified to full contrast
TENTS = 8  # along each of a box's four measures

# Quantisation of the responses before the projection; each kind is centred and scaled to about unit variance first.
LEVELS = 64
COLOUR_CENTRE, COLOUR_SPREAD = 0.22, 0.15
EDGE_CENTRE, EDGE_SPREAD = 0.9, 0.25
PLACE_CENTRE, PLACE_SPREAD = 0.25, 0.35


def region_features(pixels: NDArray[np.uint8], boxes: Floats) -> Floats:
    """Features of an image's regions from their pixels, never from what was drawn.

    Every crop is resized to 36 x 36 and answered by 32 rectified colour filters (random directions of RGB with random
    thresholds) and by 16 rectified edge filters on luminance (Gabor patches, 8 orientations in two phases), both
    averaged over a 4 x 4 grid; the edge responses are relative to the crop's contrast. A detector also knows where on
    the pixel grid it looked: the box's centre and sides enter through 32 of the 800 responses, which are projected to
    256 by a random matrix of signs. Filters and matrix come from a fixed seed.

    Args:
        pixels: (224, 224, 3) uint8 RGB.
        boxes: (regions, 4) float32, x0, y0, x1, y1 in pixels, inside the image.

    Returns:
        (regions, 256) float32 of about unit variance.
    """
    crops = _crops(pixels, boxes)
    responses = np.concatenate(
        [
            (_colour_responses(crops) - COLOUR_CENTRE) / COLOUR_SPREAD,
            (_edge_responses(crops) - EDGE_CENTRE) / EDGE_SPREAD,
            (_place_responses(boxes) - PLACE_CENTRE) / PLACE_SPREAD,
        ],
        axis=1,
    )
    levels = np.rint(LEVELS * responses).astype(np.float32)
    signs = _projection(levels.shape[1])
    return (levels @ signs) / np.float32(LEVELS * np.sqrt(len(signs)))


def _crops(pixels: NDArray[np.uint8], boxes: Floats) -> Floats:
    """(regions, 36, 36, 3), whole numbers 0 to 255."""
    image = Image.fromarray(pixels)
    resized = [image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=tuple(box)) for box in boxes.tolist()]
    return np.stack([np.asarray(crop) for crop in resized]).astype(np.float32)


def _colour_responses(crops: Floats) -> NDArray[np.float64]:
    weights, thresholds, ranges = _colour_bank()
    reach = EDGE_TAPS // 2
    responses = np.maximum(crops[:, reach:-reach:STRIDE, reach:-reach:STRIDE] @ weights - thresholds, 0)
    return (_cell_means(responses) / ranges).reshape(len(crops), -1)


def _edge_responses(crops: Floats) -> NDArray[np.float64]:
    luminance = np.floor(crops @ np.array([5, 9, 2], dtype=np.float32) / 16)
    windows = np.lib.stride_tricks.sliding_window_view(luminance, (EDGE_TAPS, EDGE_TAPS), axis=(1, 2))
    windows = windows[:, ::STRIDE, ::STRIDE]
    side = windows.shape[1]
    responses = np.abs(windows.reshape(-1, EDGE_TAPS**2) @ _edge_bank()).reshape(len(crops), side, side, -1)
    means = _cell_means(responses).reshape(len(crops), -1)
    contrast = means.mean(axis=1, keepdims=True)
    return np.sqrt(means / (contrast + EDGE_FLOOR))


def _place_responses(boxes: Floats) -> NDArray[np.float64]:
    """Tent functions of the box's centre and sides as shares of the image: each answers to a narrow range of values."""
    lower, upper = boxes[:, :2].astype(np.float64) / IMAGE_SIZE, boxes[:, 2:].astype(np.float64) / IMAGE_SIZE
    measures = np.concatenate([(lower + upper) / 2, upper - lower], axis=1)
    peaks = (np.arange(TENTS) + 0.5) / TENTS
    tents = np.maximum(1 - np.abs(measures[:, :, None] - peaks) * (TENTS / 2), 0)
    return tents.reshape(len(boxes), -1)


def _cell_means(responses: Floats) -> NDArray[np.float64]:
    """(regions, side, side, filters) averaged over the grid: (regions, cells, cells, filters)."""
    regions, side, _, filters = responses.shape
    step = side // CELLS
    cells = responses.reshape(regions, CELLS, step, CELLS, step, filters)
    return cells.sum(axis=(2, 4)).astype(np.float64) / step**2


@cache
def _colour_bank() -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Weights (3, 32) and thresholds (32,), whole numbers, and the largest possible response of each filter (32,)."""
    rng = np.random.default_rng((BANK_SEED, 0))
    directions = rng.standard_normal((3, COLOUR_FILTERS))
    weights = np.rint(COLOUR_SCALE * directions / np.linalg.norm(directions, axis=0))
    lowest, highest = 255 * np.minimum(weights, 0).sum(axis=0), 255 * np.maximum(weights, 0).sum(axis=0)
    thresholds = np.rint(lowest + rng.uniform(0, 0.9, size=COLOUR_FILTERS) * (highest - lowest))
    return weights.astype(np.float32), thresholds.astype(np.float32), highest - thresholds


@cache
def _edge_bank() -> Floats:
    """Gabor patches as columns, (25, 16), whole numbers."""
    offsets = np.arange(EDGE_TAPS) - EDGE_TAPS // 2
    down, across = np.meshgrid(offsets, offsets, indexing="ij")
    envelope = np.exp(-(across**2 + down**2) / 4)
    patches = []
    for angle in np.pi * np.arange(ORIENTATIONS) / ORIENTATIONS:
        along = np.cos(angle) * across + np.sin(angle) * down
        for phase in (0, np.pi / 2):
            patch = envelope * np.cos(1.7 * along + phase)
            patch -= envelope * patch.sum() / envelope.sum()  # a flat crop gets almost no response
            patches.append(np.rint(EDGE_PEAK * patch / np.abs(patch).max()).ravel())
    return np.array(patches, dtype=np.float32).T


@cache
def _projection(responses: int) -> Floats:
    """A matrix of random signs, (responses, 256)."""
    rng = np.random.default_rng((BANK_SEED, 1))
    return np.where(rng.random((responses, FEATURES)) < 0.5, np.float32(-1), np.float32(1))
