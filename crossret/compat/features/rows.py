"""Sources of region features: the regions of one image after another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crossret.files.lines import read_lines
from crossret.progress import Progress


@dataclass(frozen=True)
class Row:
    """The regions of one image.

    Attributes:
        place: the file and the line or row, by which errors call it.
        features: (k, d) floating point.
        boxes: (k, 4) floating point, x0, y0, x1, y1 in pixels; None where the source has none.
        boxes_place: the file and the line or row of the boxes.
        image_id: the image's name in the source; None where it has no names.
    """

    place: str
    features: NDArray[np.floating]
    boxes: NDArray[np.floating] | None
    boxes_place: str
    image_id: str | None = None


class Source(Protocol):
    """Images with their regions, in order.

    Attributes:
        name: its name in errors.
    """

    name: str

    def measure(self, progress: Progress) -> tuple[int, int]:
        """How many images there are, and the most regions of one.

        Where all has to be looked at, ``progress`` is called with how much of it has been, and how much there is.
        Raises a ValueError as ``__iter__``.
        """

    def __iter__(self) -> Iterator[Row]:
        """Every image; raises a ValueError that names file, line or row, and reason, where one is malformed."""


def read_wanted(path: Path) -> list[str]:
    """The ids of the images that are wanted, a line each.

    Raises:
        OSError, ValueError: as ``read_lines``; there are none in it.
    """
    names = [line.strip() for line in read_lines(path)]
    if not names:
        raise ValueError(f"{path}: no ids in it")
    return names


@contextmanager
def undamaged(place: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever libraries raise of a damaged file into one error, which names the place."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{place}: damaged ({' '.join(str(error).split()) or type(error).__name__})") from error
