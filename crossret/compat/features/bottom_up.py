"""Bottom-up attention's TSV: image_id, image_w, image_h, num_boxes, boxes and features, arrays as base64 of float32."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossret.compat.features.rows import Row, read_wanted
from crossret.data.pictures import ends_of, find_by_ids, names_of
from crossret.data.precomputed import LARGEST_IMAGE
from crossret.files.regular import check_regular, open_regular
from crossret.progress import Progress

_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LONGEST_LINE = LARGEST_IMAGE * 3 // 2
_MOST_DIGITS = 9  # in an image's size or number of boxes


class _Line(NamedTuple):
    """Where an image is, what it is called, and how many regions it has."""

    path: Path
    place: str
    offset: int
    image_id: str
    regions: int


class BottomUpFiles:
    """One or several such files, as generate_tsv.py of bottom-up-attention wrote them: a ``Source``.

    Boxes are in pixels of the image. Base64 may be in ``b'...'``, as Python 3 writes it. Without ids images come in the
    files' order. Files are read twice, first for where images are and how many regions they have; no more than a line
    of them is in memory.

    Args:
        paths: the files.
        ids: a file with the id of an image a line: which images are wanted and in which order, perhaps repeatedly; an
            id tells a line's as ``find_by_ids`` has it. Lines of others are looked at for their id alone.

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
        self._wanted = None if ids is None else read_wanted(ids)
        self._found: list[_Line] | None = None

    def measure(self, progress: Progress) -> tuple[int, int]:
        """Images and most regions: see ``Source.measure``. Finds the lines of the images that are asked for, too."""
        found: dict[str, _Line] = {}
        wanted = None if self._wanted is None else {end for name in self._wanted for end in (name, *ends_of(name))}
        before, total = 0, sum(path.stat().st_size for path in self._paths)
        for path in self._paths:
            for place, offset, line in _lines(path):
                image_id = _id(line, place)
                if image_id in found:
                    raise ValueError(f"{place}: image {image_id!r} is at {found[image_id].place} already")
                taken = wanted is None or not wanted.isdisjoint(names_of(image_id))
                found[image_id] = _Line(path, place, offset, image_id, len(_fields(line, place)[1]) if taken else 0)
                progress(before + offset + len(line), total)
            before += path.stat().st_size
        self._found = list(found.values())
        if self._wanted is not None:
            lines = find_by_ids(f"{self.name}: {{}} lines", found.items(), self._wanted)
            self._found = [line._replace(image_id=name) for line, name in zip(lines, self._wanted, strict=True)]
        return len(self._found), max((line.regions for line in self._found), default=0)

    def __iter__(self) -> Iterator[Row]:
        """Every image, as ``Source.__iter__``."""
        if self._found is None:
            self.measure(lambda done, total: None)
            assert self._found is not None
        with ExitStack() as stack:
            files = {path: stack.enter_context(open_regular(path)) for path in self._paths}
            for path, place, offset, image_id, _ in self._found:
                files[path].seek(offset)
                named, boxes = _fields(_read_line(files[path], place), place)
                yield Row(place, _numbers(named, "features", len(boxes), place), boxes, place, image_id)


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


def _id(line: bytes, place: str) -> str:
    image_id, tab, _ = line.partition(b"\t")
    if not tab:
        raise ValueError(f"{place}: no tab in it, expected {len(_FIELDS)} fields: {', '.join(_FIELDS)}")
    name = image_id.strip()
    if not name or not name.isascii() or not name.decode().isprintable():
        raise ValueError(f"{place}: image_id is {image_id[:40]!r}, not a name in ASCII")
    return name.decode()


def _fields(line: bytes, place: str) -> tuple[dict[str, bytes], NDArray[np.float32]]:
    """The fields of a line, and its boxes (num_boxes, 4)."""
    count = line.count(b"\t") + 1  # ahead of the fields: of a line of tabs these are a hundred times its size
    if count != len(_FIELDS):
        raise ValueError(f"{place}: {count} fields, expected {len(_FIELDS)}: {', '.join(_FIELDS)}")
    named = dict(zip(_FIELDS, line.rstrip(b"\r\n").split(b"\t"), strict=True))
    _, _, count = (_positive(named, name, place) for name in ("image_w", "image_h", "num_boxes"))
    boxes = _numbers(named, "boxes", count, place)
    if boxes.shape[1] != 4:
        raise ValueError(f"{place}: boxes has {boxes.size} numbers, expected 4 for each of {count} boxes")
    return named, boxes


def _positive(fields: dict[str, bytes], name: str, place: str) -> int:
    text = fields[name].strip()
    if not text.isdigit() or len(text) > _MOST_DIGITS or not int(text):
        raise ValueError(f"{place}: {name} is {fields[name][:40]!r}, not a whole number above 0")
    return int(text)


def _numbers(fields: dict[str, bytes], name: str, count: int, place: str) -> NDArray[np.float32]:
    """(count, …) of a field."""
    text = fields[name].strip()
    if text.startswith(b"b'") and text.endswith(b"'"):  # as Python 3 writes bytes
        text = text[2:-1]
    try:
        contents = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{place}: {name} is not base64 ({error})") from error
    width, rest = divmod(len(contents), 4 * count)
    if rest or not width:
        raise ValueError(f"{place}: {name} has {len(contents)} bytes, not as many float32 for each of {count} boxes")
    return np.frombuffer(contents, "<f4").reshape(count, width)
