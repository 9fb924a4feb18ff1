"""Region features in an HDF5 file: a data set (images, k, d), and perhaps one of boxes (images, k, 4)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crossret.compat.features.arrays import check_box_shape
from crossret.compat.features.rows import Row, undamaged
from crossret.data.precomputed import LARGEST_IMAGE, check_image_size
from crossret.files.regular import check_regular
from crossret.progress import Progress

_BLOCK_BYTES = 2**26
_SHOWN = 20  # names of data sets that are there, where the one that was asked for is not


class Hdf5File:
    """Data sets of floating point in an HDF5 file, read in blocks: a ``Source``. Needs h5py, the extra "hdf5".

    Links to other files, data sets stored in others and those composed of others are not followed.

    Args:
        path: the file.
        dataset: name of the data set (images, k, d); one in a group as "group/name".
        box_dataset: name of that of x0, y0, x1, y1 in pixels, (images, k, 4); None where there are none.

    Raises:
        OSError: the file is missing.
        ValueError: it is no HDF5 file, lacks a data set, or one is another; names the file and the data set. Or h5py is
            not installed.
    """

    def __init__(self, path: Path, dataset: str = "features", box_dataset: str | None = None) -> None:
        self.name = str(path)
        self._names = (dataset, box_dataset)
        with _opened(path) as file:
            stored = _data_set(path, file, dataset)
            check_image_size(f"{path}: {dataset}", stored)
            _check_written(path, stored, dataset)
            if box_dataset is not None:
                placed = _data_set(path, file, box_dataset)
                check_box_shape(f"{path}: {box_dataset}", placed, stored)
                _check_written(path, placed, box_dataset)
            self._images, self._regions = stored.shape[:2]

    def measure(self, progress: Progress) -> tuple[int, int]:
        """Images and most regions: see ``Source.measure``."""
        return self._images, self._regions

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        features, boxes = self._names
        with _opened(Path(self.name)) as file:
            stored = _data_set(self.name, file, features)
            placed = None if boxes is None else _data_set(self.name, file, boxes)
            block = max(1, _BLOCK_BYTES // (math.prod(stored.shape[1:]) * stored.dtype.itemsize))
            for begin in range(0, self._images, block):
                rows = slice(begin, begin + block)
                images, places = _read(self.name, stored, rows), _read(self.name, placed, rows)
                for number, image in enumerate(images):
                    row = begin + number
                    place, boxes_place = (f"{self.name}: {name}, row {row}" for name in self._names)
                    yield Row(place, image, None if placed is None else places[number], boxes_place)


def _opened(path: Path) -> Any:
    check_regular(path)
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ValueError(f"{path}: HDF5 needs h5py: pip install 'crossret[hdf5]' ({error})") from error
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: not a readable HDF5 file ({error})") from error


def _data_set(path: str | Path, file: Any, name: str) -> Any:
    """A data set of three dimensions in the file itself."""
    found: dict[str, Any] = {}
    with undamaged(f"{path}: {name}"):
        # Links are not followed. Names that are no UTF-8 come as bytes.
        file.visititems(
            lambda place, item: found.update({os.fsdecode(place): item}) if hasattr(item, "chunks") else None
        )
        stored = found.get(name.removeprefix("/"))
        if stored is not None:
            elsewhere, dtype = stored.is_virtual or stored.external, stored.dtype
            shape, chunks = stored.shape, stored.chunks
    if stored is None:
        more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        there = ", ".join(sorted(found)[:_SHOWN]) or "nothing"
        raise ValueError(
            f"{path}: no data set {name!r} in it, but for links, which are not followed; there is {there}{more}"
        )
    if elsewhere:
        raise ValueError(f"{path}: data set {name!r} is stored in other files")
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError(f"{path}: data set {name!r} is {dtype}, not float16, float32 or float64")
    if shape is None or len(shape) != 3 or 0 in shape:
        raise ValueError(f"{path}: data set {name!r} has shape {shape}, expected 3 dimensions, none of them empty")
    if chunks is not None and math.prod(chunks) * dtype.itemsize > LARGEST_IMAGE:
        raise ValueError(f"{path}: data set {name!r} has chunks of shape {chunks}, too large to read")
    return stored


def _check_written(path: str | Path, stored: Any, name: str) -> None:
    """Raise where numbers are missing: HDF5 gives zeros in their place, and a few bytes claim any number of images."""
    blocks = math.prod(
        -(-size // block) for size, block in zip(stored.shape, stored.chunks or stored.shape, strict=True)
    )
    with undamaged(f"{path}: {name}"):
        written = stored.id.get_num_chunks() if stored.chunks is not None else int(stored.id.get_storage_size() > 0)
    if written < blocks:
        raise ValueError(f"{path}: data set {name!r} is not whole: {written} of its {blocks} blocks were ever written")


def _read(path: str, stored: Any, rows: slice) -> Any:
    if stored is None:
        return None
    with undamaged(f"{path}: {stored.name[1:]}, row {rows.start} and after"):
        return stored[rows]
