"""Features of any source written as a split of a data directory, image by image, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row, Source
from crossret.data.boxes import wrong_box
from crossret.data.precomputed import boxes_path, features_path, ids_path, lengths_path, read_ids
from crossret.files.arrays import write_rows
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.progress import Progress


@dataclass(frozen=True)
class Imported:
    """Record of a split that was written.

    Attributes:
        images, regions, dimensions: the shape of the features.
        fewest: regions of the image that has fewest.
        with_boxes: whether there are boxes.
    """

    images: int
    regions: int
    dimensions: int
    fewest: int
    with_boxes: bool


def import_features(
    source: Source,
    directory: str | os.PathLike[str],
    split: str,
    *,
    regions: int | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Write ``{split}_ims.npy`` and, of a source that has them, ``{split}_boxes.npy`` and ``{split}_ids.txt``.

    Where images have different numbers of regions, they are padded with zeros and ``{split}_lengths.npy`` tells the
    numbers. All files are there when they are whole, or none; captions, which the source has not, are
    ``import_captions``' or the user's. Where ``{split}_ids.txt`` is there, with captions in its order, images must come
    in it, too. Features in float16 stay in float16, others and boxes become float32.

    Args:
        source: the images.
        directory: the data directory, made if needed, and removed again if nothing comes to be in it.
        split: the split's name.
        regions: number of each image's first regions that are taken, at least 1; None takes all.
        progress: called with how much is done, and how much there is to do, after every image; those that have to be
            looked at before are counted, too.

    Raises:
        OSError: a file cannot be read or written; FileExistsError where one of those to write is there, BlockingIOError
            where another process works in the directory.
        ValueError: an image is malformed, has other dimensions than the first, or features or boxes that are not finite
            in float32, or boxes that are none (see ``check_boxes``), or there is none; names file, line or row, and
            reason. Or ``regions`` is less than 1, or ``split`` no name.
    """
    if regions is not None and regions < 1:
        raise ValueError(f"regions must be at least 1, not {regions}")
    ids_file = ids_path(directory, split)
    outputs = [place(directory, split) for place in (boxes_path, features_path, lengths_path)]
    with occupied(directory), ExitStack() as files:  # which closes them in reverse
        wanted = read_ids(ids_file) if ids_file.exists() else None
        for path in outputs:
            if path.exists():
                raise FileExistsError(f"{path}: is there already; choose another split or directory")
        files.push(lambda kind, error, trace: _remove(outputs) if error is not None else None)
        tell, looks = progress or (lambda done, total: None), 0

        def look(done: int, total: int) -> None:
            nonlocal looks
            looks = 1
            tell(done, 2 * total)

        images, most = source.measure(look)
        rows = iter(source)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{source.name}: no images in it")
        shape = min(regions or most, most), first.features.shape[1]
        dtype = "<f2" if first.features.dtype.itemsize == 2 else "<f4"
        lengths: list[int] = []
        write_features = files.enter_context(write_rows(outputs[1], shape, dtype))
        named = first.image_id is not None and wanted is None
        outputs += [ids_file] * named  # which is not to stay if the features fail at the very end
        write_ids = files.enter_context(atomic_write(ids_file)) if named else None
        with_boxes = first.boxes is not None
        write_boxes = files.enter_context(write_rows(outputs[0], (shape[0], 4), "<f4")) if with_boxes else None
        for row in chain([first], rows):
            features, boxes = _checked(row, shape, dtype)
            if (boxes is not None) != with_boxes:
                raise ValueError(
                    f"{row.place}: {'has no boxes' if with_boxes else 'has boxes'}, unlike the first image"
                )
            write_features(features[None])
            if write_boxes is not None and boxes is not None:
                write_boxes(boxes[None])
            number = len(lengths)
            if write_ids is not None:
                write_ids.write(f"{row.image_id}\n".encode())
            elif wanted is not None and row.image_id is not None and wanted[number : number + 1] != [row.image_id]:
                raise ValueError(f"{row.place}: image {row.image_id} is not what {ids_file}, line {number + 1} names")
            lengths.append(min(len(row.features), shape[0]))
            tell(looks * images + len(lengths), (looks + 1) * images)
        if wanted is not None and len(lengths) != len(wanted):
            raise ValueError(f"{source.name}: {len(lengths)} images, but {ids_file} names {len(wanted)}")
        if min(lengths) < shape[0]:
            with write_rows(outputs[2], (), "<i4") as write_lengths:
                write_lengths(np.array(lengths, np.int32))
    return Imported(len(lengths), *shape, min(lengths), with_boxes)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _checked(row: Row, shape: tuple[int, int], dtype: str) -> tuple[NDArray[np.floating], NDArray[np.float32] | None]:
    """Features and boxes of an image as they are written, padded to ``shape``."""
    if row.features.dtype.itemsize > 2 and dtype == "<f2":
        raise ValueError(f"{row.place}: {row.features.dtype}, but the first image is in float16")
    with np.errstate(over="ignore", invalid="ignore"):
        features = row.features[: shape[0]].astype(dtype)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(f"{row.place}: features of region {finite.argmin()} are not finite in float32")
    if features.shape[1] != shape[1]:
        raise ValueError(f"{row.place}: {features.shape[1]} dimensions, but the first image has {shape[1]}")
    padding = [(0, shape[0] - len(features)), (0, 0)]
    if row.boxes is None:
        return np.pad(features, padding), None
    boxes = row.boxes[: shape[0]]
    wrong = wrong_box(boxes[None])
    if wrong is not None:
        raise ValueError(f"{row.boxes_place}: the box of region {wrong[1]} {wrong[2]}")
    return np.pad(features, padding), np.pad(boxes.astype(np.float32), padding)
