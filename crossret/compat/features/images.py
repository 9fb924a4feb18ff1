"""Images whose arrays are described one by one: which array is what, and the regions that come of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row
from crossret.compat.features.stored import Arrays, Stored

FEATURES = ("features", "feature", "feats", "feat", "x", "image_features", "image_feat", "region_features", "att_feats")
BOXES = ("boxes", "bboxes", "bbox", "box", "image_bb")
COUNTS = ("num_bbox", "num_boxes")
_SHOWN = 20  # names of arrays that are there, where the one that was asked for is not


def find_name(
    place: str, names: Collection[str], given: str | None, known: Collection[str], fits: Callable[[str], bool]
) -> str:
    """Which array is meant: the one of the given name, else of a known one, else the only one that fits.

    Raises:
        ValueError: there is none, or there are several; names the place and what is there.
    """
    found = next((name for name in (known if given is None else (given,)) if name in names), None)
    if found is None and given is None:
        fitting = list(names) if len(names) == 1 else [name for name in names if name not in BOXES and fits(name)]
        found = fitting[0] if len(fitting) == 1 else None
    if found is None:
        asked = f"{given!r} in it" if given is not None else f"of a known name in it ({', '.join(known)})"
        there = ", ".join(sorted(names)[:_SHOWN]) or "nothing with a name"
        raise ValueError(f"{place}: no array {asked}; there is {there}")
    return found


class Image:
    """An image's regions, described.

    Features are (k, d), or (d,) of one region, or a map's places (height, width, d); of (d, k), as OpenVQA's are, boxes
    tell. An array of how many boxes there are, where there is one, tells how many of the regions are real.

    Args:
        arrays: what there is of the image.
        box_arrays: in what its boxes are, if elsewhere.
        names: of the arrays of features and of boxes; None stands for a known one, or what alone fits.

    Raises:
        ValueError: an array is missing, or is none of regions; names the file and the array.
    """

    def __init__(self, arrays: Arrays, box_arrays: Arrays | None, names: tuple[str | None, str | None]) -> None:
        dataset, box_dataset = names
        self._features, self._boxes = _find(arrays, dataset, FEATURES), None
        if box_arrays is not None:
            self._boxes = _find(box_arrays, box_dataset, BOXES)
        elif box_dataset is not None or any(name in arrays.names for name in BOXES):
            self._boxes = _find(arrays, box_dataset, BOXES)
        self.place, shape = self._features.place, self._features.shape
        self.boxes_place = self.place if self._boxes is None else self._boxes.place
        if self._features.dtype.kind != "f":
            raise ValueError(f"{self.place}: holds {self._features.dtype}, not float16, float32 or float64")
        if not 1 <= len(shape) <= 3 or (len(shape) == 3 and shape[2] < max(shape[:2])):
            raise ValueError(f"{self.place}: shape {shape} is not (regions, dimensions)")
        found, boxed = math.prod(shape[:-1]), None if self._boxes is None else self._boxes.shape
        self._turned = boxed is not None and len(shape) == 2 and boxed[:1] == shape[1:] != shape[:1]
        if self._turned:
            found = shape[1]
        if boxed is not None and boxed not in ((found, 4), (1, found, 4)):
            raise ValueError(f"{self.boxes_place}: shape {boxed} is not {(found, 4)}, four numbers for every region")
        self.regions = found
        for name in (name for name in COUNTS if name in arrays.names):
            count = arrays.describe(name)
            self.regions = int(np.nan_to_num(count.read()).flat[0])
            if not 1 <= self.regions <= found:
                raise ValueError(f"{count.place}: is {self.regions}, expected 1 to {found}")

    def read(self) -> tuple[NDArray[np.floating], NDArray[Any] | None]:
        """(k, d) and (k, 4)."""
        features = self._features.read()
        features = features.T if self._turned else features.reshape(-1, features.shape[-1])
        boxes = None if self._boxes is None else self._boxes.read().reshape(-1, 4)[: self.regions]
        return features[: self.regions], boxes


class StoredImages(ABC):
    """A ``Source`` of images that are described one by one.

    Attributes:
        name, total: as ``Source`` has them.
        ids: of the images, in order; None where they have none.
    """

    name: str
    total: int
    ids: list[str] | None

    @abstractmethod
    def opened(self, number: int) -> AbstractContextManager[Image]:
        """An image, which can be read meanwhile; raises a ValueError that names the file where it is malformed."""

    @cached_property
    def regions(self) -> int:
        most = 0
        for number in range(self.total):
            with self.opened(number) as image:
                most = max(most, image.regions)
        return most

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        for number in range(self.total):
            with self.opened(number) as image:
                image_id = None if self.ids is None else self.ids[number]
                yield Row(image.place, *image.read(), image.boxes_place, number + 1, image_id)


def _find(arrays: Arrays, given: str | None, known: Collection[str]) -> Stored:
    def fits(name: str) -> bool:
        try:
            stored = arrays.describe(name)
        except ValueError:  # it is none of numbers
            return False
        return stored.dtype.kind == "f" and len(stored.shape) == 2

    return arrays.describe(find_name(arrays.place, arrays.names, given, known, fits))
