"""Bottom-up attention's TSV: image_id, image_w, image_h, num_boxes, boxes and features, arrays as base64 of float32."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row
from crossret.data.precomputed import LARGEST_IMAGE
from crossret.files.regular import LARGEST_LINES, check_regular, open_regular, read_regular

_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LONGEST_LINE = LARGEST_IMAGE * 3 // 2
_MOST_DIGITS = 9  # of a size or a number of boxes


class BottomUpFiles:
    """One or several such files, as generate_tsv.py of bottom-up-attention wrote them: a ``Source``.

    Boxes are in pixels of the image. Without ids images come in the files' order, and nothing but a line is in memory.

    Args:
        paths: the files.
        ids: a file with the id of an image a line: which images are wanted and in which order, perhaps repeatedly.
            Lines of others are looked at for their id alone.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a line is malformed, two are of the same image, or there is none of an image that is asked for;
            names file, line and reason. Lines are read, and their errors come, as the object is iterated over.
    """

    def __init__(self, paths: Sequence[Path], ids: Path | None = None) -> None:
        self.name = ", ".join(str(path) for path in paths)
        self._paths = paths
        for path in paths:
            check_regular(path)
        self._ids = ids
        self._wanted = None if ids is None else _read_ids(ids)
        self.total = sum(os.stat(path).st_size for path in paths) if self._wanted is None else len(self._wanted)

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        if self._wanted is not None:
            with ExitStack() as stack:
                files = {path: stack.enter_context(open_regular(path)) for path in self._paths}
                for done, (path, number, offset) in enumerate(self._find(self._wanted), start=1):
                    files[path].seek(offset)
                    yield _row(_read_line(files[path], f"{path}, line {number}"), f"{path}, line {number}", done)
            return
        seen: dict[str, str] = {}
        done = 0
        for path in self._paths:
            for place, _, line in _lines(path):
                done += len(line)
                row = _row(line, place, done)
                _check_new(seen, _id(line, place), place)
                yield row

    def _find(self, ids: Sequence[str]) -> list[tuple[Path, int, int]]:
        """File, number and offset of the line of each image that is asked for."""
        found: dict[str, tuple[Path, int, int]] = {}
        seen: dict[str, str] = {}
        for path in self._paths:
            for number, (place, offset, line) in enumerate(_lines(path), start=1):
                image_id = _id(line, place)
                _check_new(seen, image_id, place)
                found[image_id] = (path, number, offset)
        for number, image_id in enumerate(ids, start=1):
            if image_id not in found:
                raise ValueError(f"{self._ids}, line {number}: no image {image_id[:40]!r} in {self.name}")
        return [found[image_id] for image_id in ids]


def _read_ids(path: Path) -> list[str]:
    lines = read_regular(path, LARGEST_LINES).splitlines()
    if not lines:
        raise ValueError(f"{path}: no ids in it")
    return [line.strip().decode("utf-8", "backslashreplace") for line in lines]


def _lines(path: Path) -> Iterator[tuple[str, int, bytes]]:
    """Place, offset and contents of every line."""
    with open_regular(path) as file:
        number = offset = 0
        while line := _read_line(file, f"{path}, line {number + 1}"):
            number += 1
            yield f"{path}, line {number}", offset, line
            offset += len(line)


def _read_line(file: BinaryIO, place: str) -> bytes:
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE:
        raise ValueError(f"{place}: longer than the regions of any image")
    return line


def _check_new(seen: dict[str, str], image_id: str, place: str) -> None:
    if image_id in seen:
        raise ValueError(f"{place}: image {image_id!r} is at {seen[image_id]} already")
    seen[image_id] = place


def _id(line: bytes, place: str) -> str:
    image_id, tab, _ = line.partition(b"\t")
    if not tab:
        raise ValueError(f"{place}: no tab in it, expected {len(_FIELDS)} fields: {', '.join(_FIELDS)}")
    name = image_id.strip()
    if not name or not name.isascii() or not name.decode().isprintable():
        raise ValueError(f"{place}: image_id is {image_id[:40]!r}, not a name in ASCII")
    return name.decode()


def _row(line: bytes, place: str, done: int) -> Row:
    count = line.count(b"\t") + 1  # ahead of the fields: of a line of tabs these are a hundred times its size
    if count != len(_FIELDS):
        raise ValueError(f"{place}: {count} fields, expected {len(_FIELDS)}: {', '.join(_FIELDS)}")
    named = dict(zip(_FIELDS, line.rstrip(b"\r\n").split(b"\t"), strict=True))
    _, _, count = (_positive(named, name, place) for name in ("image_w", "image_h", "num_boxes"))
    boxes, features = (_numbers(named, name, count, place) for name in ("boxes", "features"))
    if boxes.shape[1] != 4:
        raise ValueError(f"{place}: boxes has {boxes.size} numbers, expected 4 for each of {count} boxes")
    return Row(place, features, boxes, place, done, _id(line, place))


def _positive(fields: dict[str, bytes], name: str, place: str) -> int:
    text = fields[name].strip()
    if not text.isdigit() or len(text) > _MOST_DIGITS or not int(text):
        raise ValueError(f"{place}: {name} is {fields[name][:40]!r}, not a whole number above 0")
    return int(text)


def _numbers(fields: dict[str, bytes], name: str, count: int, place: str) -> NDArray[np.float32]:
    """(count, …) of a field."""
    try:
        contents = base64.b64decode(fields[name], validate=True)
    except binascii.Error as error:
        raise ValueError(f"{place}: {name} is not base64 ({error})") from error
    width, rest = divmod(len(contents), 4 * count)
    if rest or not width:
        raise ValueError(f"{place}: {name} has {len(contents)} bytes, not as many float32 for each of {count} boxes")
    return np.frombuffer(contents, "<f4").reshape(count, width)
