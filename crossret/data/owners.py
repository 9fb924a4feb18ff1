"""The image that each caption describes, in ``{split}_image_of_caption.npy`` where images differ in their captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import map_array, write_rows
from crossret.files.features import LENGTH_DTYPES

PUBLISHED_CAPTIONS = PUBLISHED_FOLDS = 5
"""Captions of an image, and folds of MS-COCO's 1K results, in the published tables of Flickr30K and MS-COCO."""


def alike(images: int, captions: int) -> NDArray[np.int64]:
    """(captions,) int64: as many consecutive captions for each image; ``images`` divides ``captions``."""
    return np.arange(captions, dtype=np.int64) // (captions // images)


def read_owners(path: Path, images: int, captions: int) -> NDArray[np.int64]:
    """The image of each caption, (captions,) int64, ascending: captions are in the order of their images.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such array, or an image has no caption; names the file and the caption.
    """
    owners = map_array(path, ndim=1, dtypes=LENGTH_DTYPES).astype(np.int64)
    if len(owners) != captions:
        raise ValueError(f"{path}: of {len(owners):,} captions, but there are {captions:,}")
    steps = np.diff(owners, prepend=-1, append=images)
    right = (steps == 0) | (steps == 1)
    right[[0, -1]] = steps[[0, -1]] == 1
    if not right.all():
        caption = min(int(right.argmin()), captions - 1)
        raise ValueError(
            f"{path}: captions must be in the order of their images, 0 to {images - 1}, and every image must have one, "
            f"but caption {caption} is of image {owners[caption]}"
        )
    return owners


def write_owners(path: Path, counts: Sequence[int]) -> None:
    """Write what ``read_owners`` reads of captions in the order of their images, ``counts`` each; where all have as
    many nothing: the numbers of images and captions tell it.
    """
    if len(set(counts)) > 1:
        with write_rows(path, (), "<i4") as write:
            write(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
