"""Pictures of a folder: their files, found by the ids of images, and their pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from crossret.data.precomputed import PICTURES
from crossret.files.regular import open_regular


def list_pictures(directory: str | os.PathLike[str]) -> list[Path]:
    """The pictures in a directory, not in those inside it, sorted by name.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path for path in Path(directory).iterdir() if path.suffix.lower() in PICTURES)


def pictures_below(directory: str | os.PathLike[str]) -> list[str]:
    """The pictures in a directory and in those inside it, but hidden ones: paths within it, with "/", sorted.

    Raises:
        OSError: a directory cannot be read.
    """
    found = []

    def fail(error: OSError) -> None:
        raise error

    for place, inside, files in os.walk(directory, onerror=fail):
        inside[:] = [name for name in inside if not name.startswith(".")]
        within = Path(place).relative_to(directory)
        pictures = (name for name in files if Path(name).suffix.lower() in PICTURES and not name.startswith("."))
        found += [(within / name).as_posix() for name in pictures]
    return sorted(found)


def find_pictures(directory: str | os.PathLike[str], ids: Sequence[str]) -> list[Path]:
    """The files of images in a directory, by their ids: what a file is called, or the number that its name ends with.

    ``COCO_val2014_000000391895.jpg`` is image 391895.

    Raises:
        OSError: the directory cannot be read. ValueError: there is no file of an image, or several; names the image.
    """
    files: dict[str, list[Path]] = {}
    for path in list_pictures(directory):
        number = re.search(r"[0-9]+$", path.stem)
        for name in {path.stem, *([] if number is None else [number[0].lstrip("0") or "0"])}:
            files.setdefault(name, []).append(path)
    found = []
    for name in ids:
        own = [path for path in files.get(name, []) if path.stem == name] or files.get(name, [])
        if len(own) != 1:
            raise ValueError(f"{directory}: {len(own) or 'no'} pictures of image {name}")
        found.append(own[0])
    return found


def read_picture(path: Path) -> Image.Image:
    """A picture in RGB, upright as it is shown: cameras say in the file's EXIF how they were held.

    Raises:
        OSError: it is missing or cannot be read. ValueError: it is malformed; names it.
    """
    with open_regular(path) as file:
        try:
            with Image.open(file) as picture:
                return ImageOps.exif_transpose(picture).convert("RGB")
        # What decoders raise of malformed files, which does not name them.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path}: not a readable image ({error})") from error
