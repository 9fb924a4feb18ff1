"""Pictures of a folder: their files, found by the ids of images, and their pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from PIL import Image, ImageOps

from crossret.data.precomputed import PICTURES
from crossret.files.regular import open_regular


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
    """The files of images in a directory and in those inside it, by their ids, as ``find_files``."""
    return find_files(directory, ((id_of(name), Path(directory, name)) for name in pictures_below(directory)), ids)


def find_files(
    directory: str | os.PathLike[str], files: Iterable[tuple[str, Path]], ids: Sequence[str], what: str = "pictures"
) -> list[Path]:
    """Of the files of a directory, each with where it is as ``id_of`` says, those of images, by their ids.

    An id is where a file is, without its ending, ``beach/red kite``; or what it is called, ``red kite``; or the number
    that its name ends with: ``val2014/COCO_val2014_000000391895.jpg`` is image 391895; or where a file is, with
    folders before it that are around the directory.

    Raises:
        ValueError: there is no file of an image, or several; names the directory and the image.
    """
    ways: list[dict[str, list[Path]]] = [{}, {}, {}]
    for own, path in files:
        keys = own, own.rpartition("/")[2], *re.findall(r"0*([0-9]+)$", own)
        for way, key in zip(ways, keys, strict=False):
            way.setdefault(key, []).append(path)
    found = []
    for name in ids:
        inside = [name[slash.end() :] for slash in re.finditer("/", name)]
        found_by = [(way, name) for way in ways] + [(ways[0], end) for end in inside]
        of_image = next((way[key] for way, key in found_by if key in way), [])
        if len(of_image) != 1:
            raise ValueError(f"{directory}: {len(of_image) or 'no'} {what} of image {name}")
        found += of_image
    return found


def id_of(name: str) -> str:
    """A picture's id by its path within a directory: that path without the file's ending."""
    return PurePosixPath(name).with_suffix("").as_posix()


def read_picture(path: Path) -> Image.Image:
    """A picture in RGB, upright as it is shown: cameras say in the file's EXIF how they were held.

    Raises:
        OSError: it is missing or cannot be read. ValueError: it is malformed; names it.
    """
    with _opened(path) as picture:
        return ImageOps.exif_transpose(picture).convert("RGB")


def check_picture(path: Path) -> None:
    """Raise as ``read_picture`` of a file that is missing or does not begin as a picture; what follows is not read."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with open_regular(path) as file:
        try:
            with Image.open(file) as picture:
                yield picture
        # What decoders raise of malformed files, which does not name them.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path}: not a readable image ({error})") from error
