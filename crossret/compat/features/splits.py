"""Features of any source written as a split of a data directory, image by image, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row, Source
from crossret.data.boxes import wrong_box
from crossret.data.precomputed import boxes_path, features_path, ids_path, read_ids
from crossret.files.arrays import write_rows
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied


@dataclass(frozen=True)
class Imported:
    """What was written.

    Attributes:
        images, regions, dimensions: the shape of the features.
        with_boxes: whether there are boxes.
    """

    images: int
    regions: int
    dimensions: int
    with_boxes: bool


def import_features(
    source: Source,
    directory: str | os.PathLike[str],
    split: str,
    *,
    regions: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Write ``{split}_ims.npy`` and, of a source that has them, ``{split}_boxes.npy`` and ``{split}_ids.txt``.

    All are there when they are whole, or none; captions, which the source has not, are ``import_captions``' or the
    user's. Where ``{split}_ids.txt`` is there, with captions in its order, images must come in it, too. Features in
    float16 stay in float16, others and boxes become float32.

    Args:
        source: the images.
        directory: the data directory, made if needed, and removed again if nothing comes to be in it.
        split: the split's name.
        regions: of each image its first ones, at least 1; None takes all, of which every image must have as many.
        progress: called with (done, all of ``source.total``) after every image.

    Raises:
        OSError: a file cannot be read or written; FileExistsError where one of those to write is there, BlockingIOError
            where another process works in the directory.
        ValueError: an image is malformed, has other numbers of regions or dimensions than the first or fewer than
            ``regions``, or features or boxes that are not finite in float32, or boxes that are none (see
            ``check_boxes``), or there is none; names file, line or row, and reason. Or ``regions`` is less than 1, or
            ``split`` no name.
    """
    if regions is not None and regions < 1:
        raise ValueError(f"regions must be at least 1, not {regions}")
    ids_file = ids_path(directory, split)
    outputs = boxes_path(directory, split), features_path(directory, split)
    with occupied(directory), ExitStack() as files:  # which closes them in reverse
        wanted = read_ids(ids_file) if ids_file.exists() else None
        for path in outputs:
            if path.exists():
                raise FileExistsError(f"{path}: is there already; choose another split or directory")
        files.push(lambda kind, error, trace: _remove(outputs) if error is not None else None)
        rows = iter(source)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{source.name}: no images in it")
        features, boxes = _checked(first, None, regions)
        shape, with_boxes = (features.shape[0], features.shape[1]), boxes is not None
        images = 0
        write_features = files.enter_context(write_rows(outputs[1], shape, features.dtype.str))
        named = first.image_id is not None and wanted is None
        write_ids = files.enter_context(atomic_write(ids_file)) if named else None
        write_boxes = files.enter_context(write_rows(outputs[0], (shape[0], 4), "<f4")) if with_boxes else None
        for row in chain([first], rows):
            features, boxes = _checked(row, shape, regions)
            write_features(features[None])
            if write_boxes is not None and boxes is not None:
                write_boxes(boxes[None])
            if write_ids is not None:
                write_ids.write(f"{row.image_id}\n".encode())
            elif wanted is not None and row.image_id is not None and wanted[images : images + 1] != [row.image_id]:
                raise ValueError(f"{row.place}: image {row.image_id} is not what {ids_file}, line {images + 1} names")
            images += 1
            if progress is not None:
                progress(row.done, source.total)
        if wanted is not None and images != len(wanted):
            raise ValueError(f"{source.name}: {images} images, but {ids_file} names {len(wanted)}")
    return Imported(images, *shape, with_boxes)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _checked(
    row: Row, shape: tuple[int, int] | None, regions: int | None
) -> tuple[NDArray[np.floating], NDArray[np.float32] | None]:
    """Features and boxes of an image as they are written, of the shape that the first one has."""
    count = len(row.features)
    if regions is not None and count < regions:
        raise ValueError(f"{row.place}: {count} regions, fewer than the {regions} that are to be taken")
    features = row.features[:regions]
    if features.dtype != np.float16:
        with np.errstate(over="ignore", invalid="ignore"):
            features = features.astype(np.float32)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(f"{row.place}: features of region {finite.argmin()} are not finite in float32")
    if shape is not None and features.shape != shape:
        advice = "; regions takes the first of each" if regions is None and features.shape[1] == shape[1] else ""
        raise ValueError(
            f"{row.place}: {features.shape[0]} regions of {features.shape[1]} dimensions, but the first image has "
            f"{shape[0]} of {shape[1]}{advice}"
        )
    if row.boxes is None:
        return features, None
    boxes = row.boxes[:regions]
    wrong = wrong_box(boxes[None])
    if wrong is not None:
        raise ValueError(f"{row.boxes_place}: the box of region {wrong[1]} {wrong[2]}")
    return features, boxes.astype(np.float32)
