"""Pictures of a folder: their files, found by the ids of images, and their pixels."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

import numpy as np
from PIL import Image, ImageOps

from crossret.data.precomputed import PICTURES
from crossret.files.regular import open_regular

T = TypeVar("T")

MOST_PIXELS = 2**29 // 3  # pixels of a picture that is read, 512 MiB in RGB: a small file may claim any number
# Formats that are not asked for: drawn by other programs, measured, films, and of marks that other files begin with.
_NO_PICTURES = {"EPS", "WMF", "BUFR", "FITS", "GRIB", "HDF5", "MCIDAS", "FLI", "MPEG", "DIB", "GBR"}
_LARGE = threading.Lock()


def pictures_below(directory: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The pictures in a directory and in those inside it, but hidden ones, and the other files, which are left out.

    A file with an ending of ``PICTURES`` is one, unopened: reading a broken one is to fail. Of others the first bytes
    tell: a picture is what Pillow opens, but for what other programs draw, such as EPS, films and measurements. Formats
    without a mark of their own, such as TGA, are known by their ending.

    Returns:
        Paths within the directory, with "/", sorted: one picture or more, and the others.

    Raises:
        OSError: a directory cannot be read. ValueError: there are no pictures; names it.
    """
    found: tuple[list[str], list[str]] = [], []
    for path in files_below(directory):
        known = path.suffix.lower() in PICTURES
        if not known:
            with suppress(Exception), open_regular(path) as file:
                known = bool(_begun(file, path.suffix.lower()))
        found[not known].append(path.relative_to(directory).as_posix())
    if not found[0]:
        raise ValueError(f"{os.fspath(directory)}: no pictures in it")
    return sorted(found[0]), sorted(found[1])


def files_below(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """The files in a directory and in those inside it, but hidden ones; raises an OSError where one cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    for place, inside, files in os.walk(directory, onerror=fail):
        inside[:] = [name for name in inside if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def find_pictures(directory: str | os.PathLike[str], ids: Sequence[str]) -> list[Path]:
    """The files of images in a directory and in those inside it, by their ids, as ``find_by_ids``."""
    files = ((id_of(name), Path(directory, name)) for name in pictures_below(directory)[0])
    return find_by_ids(f"{directory}: {{}} pictures", files, ids)


def find_by_ids(found: str, files: Iterable[tuple[str, T]], ids: Sequence[str]) -> list[T]:
    """Files of images, by their ids; each file comes with its place in a directory as ``id_of`` gives it.

    An id is where a file is, without its ending, ``beach/red kite``; or what it is called, ``red kite``; or the number
    that its name ends with: ``val2014/COCO_val2014_000000391895.jpg`` is image 391895; or where a file is, with
    folders before it that are around the directory.

    Args:
        found: beginning of an error, with a place for how many there are, "no" or a number: "photos: {} pictures".
        files: the place of each, and what is returned of it.
        ids: of the images, perhaps repeatedly.

    Raises:
        ValueError: there is no file of an image, or several; names the image.
    """
    ways: list[dict[str, list[T]]] = [{}, {}, {}]
    for own, file in files:
        for way, key in zip(ways, names_of(own), strict=False):
            way.setdefault(key, []).append(file)
    files_of = []
    for name in ids:
        found_by = [(way, name) for way in ways] + [(ways[0], end) for end in ends_of(name)]
        of_image = next((way[key] for way, key in found_by if key in way), [])
        if len(of_image) != 1:
            raise ValueError(f"{found.format(len(of_image) or 'no')} of image {name}")
        files_of += of_image
    return files_of


def names_of(place: str) -> list[str]:
    """Names by which ids may call a file: its place, its name, and the number that this ends with, if there is one."""
    return [place, place.rpartition("/")[2], *re.findall(r"0*([0-9]+)$", place)]


def ends_of(name: str) -> list[str]:
    """An id without its first folders."""
    return [name[slash.end() :] for slash in re.finditer("/", name)]


def id_of(name: str) -> str:
    """A picture's id by its path within a directory: that path without the file's ending."""
    return PurePosixPath(name).with_suffix("").as_posix()


def read_picture(path: Path) -> Image.Image:
    """A picture in RGB, upright as it is shown: cameras say in the file's EXIF how they were held.

    Transparent pixels lie on white, and an animation's first frame is read. Greys of more than 8 bits are scaled
    by their mode: white is 65,535 of I;16, or what the bits of a TIFF's samples hold; 65,535 of I; the first of 1, 255
    and 65,535 that no value exceeds of F; of both the largest value where that is more. Less than zero is black.

    Raises:
        OSError: it cannot be read. ValueError: it is malformed, or has more pixels than ``MOST_PIXELS``; names it.
    """
    with _opened(path) as picture, ExitStack() as stack:
        if 2 * picture.width * picture.height > MOST_PIXELS:  # one at a time: memory, and filters of the whole process
            stack.enter_context(_LARGE)
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode == "F" or picture.mode.startswith("I"):
            return _scaled(picture)
        layers = picture.palette.mode if picture.mode == "P" and picture.palette else picture.mode
        if not layers.upper().endswith("A") and "transparency" not in picture.info:
            return picture.convert("RGB")
        layer, shown = picture.convert("RGBA"), Image.new("RGB", picture.size, "white")
        shown.paste(layer, mask=layer)
        return shown


def _scaled(picture: Image.Image) -> Image.Image:
    tags, values = getattr(picture, "tag_v2", {}), np.asarray(picture)
    if picture.mode == "I" and tags.get(339, (1,))[0] == 1:  # SampleFormat: unsigned
        values = values.view(np.uint32)
    whites = {"I": [65535], "F": [1, 255, 65535]}.get(picture.mode, [2 ** tags.get(258, (16,))[0] - 1])  # BitsPerSample
    largest = float(values.max(initial=0, where=np.isfinite(values)))
    white = next((white for white in whites if largest <= white), largest)
    shades = np.nan_to_num(values.astype(np.float32).clip(0, white), copy=False)
    shades *= 255 / white
    if tags.get(262) == 0:  # PhotometricInterpretation: zero is white
        np.subtract(255, shades, out=shades)
    if "transparency" in picture.info:
        shades[values == picture.info["transparency"]] = 255
    return Image.fromarray(shades.round().astype(np.uint8)).convert("RGB")


def check_picture(path: Path) -> None:
    """Raise as ``read_picture`` of a file that is missing or does not begin as a picture; what follows is not read."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with open_regular(path) as file:
        try:
            with _begun(file, path.suffix.lower()) as picture:
                if (pixels := picture.width * picture.height) > MOST_PIXELS:
                    raise ValueError(f"{pixels:,} pixels, more than MOST_PIXELS, {MOST_PIXELS:,}")
                yield picture
        except Exception as error:  # whatever decoders raise of malformed files, which does not name them
            raise ValueError(f"{path}: not a readable image ({str(error) or repr(error)})") from error


def _begun(file: BinaryIO, ending: str) -> Image.Image:
    """Picture by the first format that takes it; ``Image.open`` warns and refuses by a limit of the whole process."""
    Image.init()
    start, why = file.read(16), Exception("no format of pictures that Pillow opens")
    for name, (factory, accept) in Image.OPEN.items():
        try:
            if name not in _NO_PICTURES and (accept(start) if accept else Image.EXTENSION.get(ending) == name):
                file.seek(0)
                return factory(file, "")
        except Exception as error:  # as in _opened
            why = error
    raise why
