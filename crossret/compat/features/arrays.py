"""Region features as one array: (images, k, d), and perhaps boxes (images, k, 4)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from crossret.compat.features.rows import Row
from crossret.data.precomputed import check_image_size
from crossret.files.arrays import map_array
from crossret.files.features import FEATURE_DTYPES
from crossret.progress import Progress

_BLOCK_BYTES = 2**28


class ArrayFile:
    """A .npy file of features in float16, float32 or float64, of any byte order, memory-mapped: a ``Source``.

    In Fortran order, in which an image's numbers lie far apart, it is read in blocks of images.

    Args:
        path: (images, k, d), or (images, d) of one region each.
        boxes: another file, (images, k, 4), x0, y0, x1, y1 in pixels; None where there are none.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is no such array; names it.
    """

    def __init__(self, path: Path, boxes: Path | None = None) -> None:
        self.name = str(path)
        features: Any = map_array(path, ndim=(2, 3), dtypes=FEATURE_DTYPES, any_order=True)
        self._features = features if features.ndim == 3 else features[:, None]
        self._boxes_name = str(boxes)
        self._boxes = None if boxes is None else map_array(boxes, ndim=3, dtypes=FEATURE_DTYPES, any_order=True)
        check_image_size(path, self._features)
        if self._boxes is not None and boxes is not None:
            check_box_shape(boxes, self._boxes, self._features)

    def measure(self, progress: Progress) -> tuple[int, int]:
        """Images and most regions: see ``Source.measure``."""
        images, regions = self._features.shape[:2]
        return images, regions

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        every_box = repeat(None, len(self._features)) if self._boxes is None else _images(self._boxes)
        for row, (features, boxes) in enumerate(zip(_images(self._features), every_box, strict=True)):
            yield Row(f"{self.name}, row {row}", features, boxes, f"{self._boxes_name}, row {row}")


def _images(array: Any) -> Iterator[Any]:
    if array.flags.c_contiguous:
        yield from array
        return
    if hasattr(mmap, "MADV_RANDOM"):  # bytes beside a block's belong to other images
        _mapping(array).madvise(mmap.MADV_RANDOM)
    block = max(1, _BLOCK_BYTES // array[0].nbytes)
    for begin in range(0, len(array), block):
        yield from np.ascontiguousarray(array[begin : begin + block])


def _mapping(array: Any) -> Any:
    """The map of a file that a view is of."""
    while not isinstance(array, mmap.mmap):
        array = array.base
    return array


def check_box_shape(place: str | os.PathLike[str], boxes: Any, features: Any) -> None:
    """Raise a ValueError where boxes are not four numbers for every region."""
    if boxes.shape != (*features.shape[:2], 4):
        expected = (*features.shape[:2], 4)
        raise ValueError(f"{place}: shape {tuple(boxes.shape)} is not {expected}, four numbers for every region")
