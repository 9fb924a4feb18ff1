"""Images by their arrays, each of which has a name: which array is what, and the regions that come of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row
from crossret.data.precomputed import LARGEST_IMAGE
from crossret.progress import Progress

FEATURES = ("features", "feature", "feats", "feat", "x", "image_features", "image_feat", "region_features", "att_feats")
BOXES = ("boxes", "bboxes", "bbox", "box", "image_bb")
COUNTS = ("num_bbox", "num_boxes")
_SHOWN = 20  # names of arrays that are there, where the one that was asked for is not

Arrays = Mapping[str, Any]


def find_name(
    place: str, arrays: Arrays, given: str | None, known: tuple[str, ...], fits: Callable[[Any], bool]
) -> str:
    """Which array is meant: the one of the given name, else of a known one, else the only one that fits.

    Raises:
        ValueError: there is none, or there are several; names the place and what is there.
    """
    found = [name for name in (known if given is None else (given,)) if name in arrays][:1]
    if not found and given is None:
        others = [name for name in arrays if name not in BOXES]
        found = others if len(others) == 1 else [name for name in others if fits(arrays[name])]
    if len(found) != 1:
        asked = f"of a known name in it ({', '.join(known)})" if given is None else f"{given!r} in it"
        there = ", ".join(sorted(arrays)[:_SHOWN]) or "none of numbers"
        raise ValueError(f"{place}: no array {asked}; there is {there}")
    return found[0]


class Image:
    """An image's regions, before they are read.

    Features are (k, d), or (d,) of one region, or a map's places (height, width, d); of (d, k), as OpenVQA's are, boxes
    tell. An array of how many boxes there are, where there is one, tells how many of the regions are real.

    Args:
        image: its name in errors, and its arrays.
        boxes: name and arrays of its boxes, where they are elsewhere.
        names: of the arrays of features and boxes; None stands for a known one.

    Raises:
        ValueError: an array is missing, or is none of regions; names the place and the array.
    """

    def __init__(
        self, image: tuple[str, Arrays], boxes: tuple[str, Arrays] | None, names: tuple[str | None, str | None]
    ) -> None:
        place, arrays = image
        self.place, self._features = _find(place, arrays, names[0], FEATURES)
        self.boxes_place, self._boxes = self.place, None
        if boxes is not None or names[1] is not None or any(name in arrays for name in BOXES):
            self.boxes_place, self._boxes = _find(*(boxes or image), names[1], BOXES)
        shape = self._features.shape
        if not 1 <= len(shape) <= 3 or (len(shape) == 3 and shape[2] < max(shape[:2])):
            raise ValueError(f"{self.place}: shape {shape} is not (regions, dimensions)")
        boxed = None if self._boxes is None else self._boxes.shape
        self._turned = boxed is not None and len(shape) == 2 and boxed[:1] == shape[1:] != shape[:1]
        self.regions = shape[1] if self._turned else math.prod(shape[:-1])
        if boxed not in (None, (self.regions, 4), (1, self.regions, 4)):
            raise ValueError(
                f"{self.boxes_place}: shape {boxed} is not {(self.regions, 4)}, four numbers for every region"
            )
        for name in (name for name in COUNTS if name in arrays and arrays[name].dtype.kind in "iuf"):
            real = int(np.nan_to_num(np.asarray(arrays[name])).sum())
            if not 1 <= real <= self.regions:
                raise ValueError(f"{place}: {name} is {real}, expected 1 to {self.regions}")
            self.regions = real

    def read(self) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
        """(k, d) and (k, 4)."""
        features = np.asarray(self._features)
        features = features.T if self._turned else features.reshape(-1, features.shape[-1])
        boxes = None if self._boxes is None else np.asarray(self._boxes).reshape(-1, 4)[: self.regions]
        return features[: self.regions], boxes


class Images(ABC):
    """A ``Source`` of images by their arrays.

    Attributes:
        name: as ``Source`` has it.
        total: how many images there are.
        ids: of the images, in order; None where they have none.
    """

    name: str
    total: int
    ids: Sequence[str] | None

    @abstractmethod
    def opened(self, number: int) -> AbstractContextManager[Image]:
        """An image, which can be read meanwhile; raises a ValueError that names it where it is malformed."""

    def measure(self, progress: Progress) -> tuple[int, int]:
        """Images and most regions: see ``Source.measure``."""
        most = 0
        for number in range(self.total):
            with self.opened(number) as image:
                most = max(most, image.regions)
            progress(number + 1, self.total)
        return self.total, most

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        for number in range(self.total):
            with self.opened(number) as image:
                image_id = None if self.ids is None else self.ids[number]
                yield Row(image.place, *image.read(), image.boxes_place, image_id)


def _find(place: str, arrays: Arrays, given: str | None, known: tuple[str, ...]) -> tuple[str, Any]:
    """Name of an array in errors, and the array: floating point of at most an image's size, and not empty."""
    name = find_name(place, arrays, given, known, lambda array: array.dtype.kind == "f" and len(array.shape) == 2)
    array, place = arrays[name], f"{place}: {name}" if name else place
    if array.dtype.kind not in ("f" if known is FEATURES else "fiu") or array.dtype.itemsize > 8:
        held = "Python objects, which are not read" if array.dtype.hasobject else array.dtype
        raise ValueError(f"{place}: holds {held}, expected float16, float32 or float64")
    if 0 in array.shape or math.prod(array.shape) * array.dtype.itemsize > LARGEST_IMAGE:
        raise ValueError(f"{place}: shape {array.shape} is empty, or larger than any image's")
    return place, array
