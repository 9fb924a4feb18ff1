"""Pictures of a folder: their files, found by the ids of images, and their pixels."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from crossret.data.precomputed import PICTURES
from crossret.files.regular import open_regular

MOST_PIXELS = 2**29 // 3
"""Pixels of the largest picture that is read, 512 MiB in RGB: a small file may claim any number."""

# Formats that are not asked for: drawn by other programs, measured, films, and of marks that other files begin with.
_NO_PICTURES = {"EPS", "WMF", "BUFR", "FITS", "GRIB", "HDF5", "MCIDAS", "FLI", "MPEG", "DIB", "GBR"}
_ALPHA = ("LA", "PA", "RGBA", "RGBa")
_LARGE = threading.Lock()


def pictures_below(directory: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The pictures in a directory and in those inside it, and its other files, which are left out.

    A file with an ending of ``PICTURES`` is a picture, unopened, so that reading a broken one fails. Of others the
    first bytes tell: a picture is what Pillow opens, but no format that another program draws, such as EPS, and none
    of films or measurements. Formats without a mark, such as TGA, are known by their own ending. What is hidden does
    not count.

    Returns:
        Paths within the directory, with "/", sorted: at least one picture; the others.

    Raises:
        OSError: a directory cannot be read. ValueError: there are no pictures; names it.
    """
    found: tuple[list[str], list[str]] = [], []

    def fail(error: OSError) -> None:
        raise error

    for place, inside, files in os.walk(directory, onerror=fail):
        inside[:] = [name for name in inside if not name.startswith(".")]
        for path in (Path(place, name) for name in files if not name.startswith(".")):
            known = path.suffix.lower() in PICTURES or _is_picture(path)
            found[not known].append(path.relative_to(directory).as_posix())
    if not found[0]:
        raise ValueError(f"{os.fspath(directory)}: no pictures in it")
    return sorted(found[0]), sorted(found[1])


def find_pictures(directory: str | os.PathLike[str], ids: Sequence[str]) -> list[Path]:
    """The files of images in a directory and in those inside it, by their ids.

    An id is where a file is, without its ending, ``beach/red kite``; or what it is called, ``red kite``; or the number
    that its name ends with: ``val2014/COCO_val2014_000000391895.jpg`` is image 391895.

    Raises:
        OSError: a directory cannot be read. ValueError: there is no file of an image, or several; names the image.
    """
    ways: list[dict[str, list[Path]]] = [{}, {}, {}]
    for name in pictures_below(directory)[0]:
        path = Path(directory, name)
        number = re.search(r"[0-9]+$", path.stem)
        keys = (id_of(name), path.stem, None if number is None else number[0].lstrip("0") or "0")
        for way, key in zip(ways, keys, strict=True):
            if key is not None:
                way.setdefault(key, []).append(path)
    found = []
    for name in ids:
        own = next((way[name] for way in ways if name in way), [])
        if len(own) != 1:
            raise ValueError(f"{directory}: {len(own) or 'no'} pictures of image {name}")
        found.append(own[0])
    return found


def id_of(name: str) -> str:
    """A picture's id by its path within a directory: that path without the file's ending."""
    return PurePosixPath(name).with_suffix("").as_posix()


def read_picture(path: Path) -> Image.Image:
    """A picture in RGB, upright as it is shown: cameras say in the file's EXIF how they were held.

    What is transparent lies on white, and of an animation the first frame is read. Greys of more than 8 bits are scaled
    by what their mode holds, less than zero being black: of I;16 white is 65,535, or what the bits of a TIFF's sample
    hold; of I it is 65,535, and of F the first of 1, 255 and 65,535 that no value exceeds, but the largest value where
    that is more. All else is as ``convert`` of Pillow makes it.

    Raises:
        OSError: it is missing or cannot be read. ValueError: it is malformed, of more pixels than ``MOST_PIXELS`` or no
            picture; names it.
    """
    with _opened(path) as picture:
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode == "F" or picture.mode.startswith("I"):
            return _scaled(picture)
        alpha = picture.palette.mode if picture.mode == "P" and picture.palette else picture.mode
        if alpha not in _ALPHA and "transparency" not in picture.info:
            return picture.convert("RGB")
        layer, shown = picture.convert("RGBA"), Image.new("RGB", picture.size, "white")
        shown.paste(layer, mask=layer)
        return shown


def _scaled(picture: Image.Image) -> Image.Image:
    """A grey picture of more than 8 bits in RGB."""
    tags, values = getattr(picture, "tag_v2", {}), np.asarray(picture)
    if values.dtype == np.int32 and tags.get(339, (1,))[0] == 1:  # SampleFormat: unsigned
        values = values.view(np.uint32)
    whites = (1, 255, 65535) if picture.mode == "F" else (65535,)
    if picture.mode.startswith("I;16"):
        whites = (2 ** tags.get(258, (16,))[0] - 1,)  # BitsPerSample
    largest = float(values.max(initial=0, where=np.isfinite(values)))
    white = next((white for white in whites if largest <= white), largest)
    shades = np.nan_to_num(values.clip(0, white).astype(np.float32), copy=False)
    shades *= 255 / white
    if tags.get(262) == 0:  # PhotometricInterpretation: zero is white
        shades = 255 - shades
    shades[values == picture.info.get("transparency")] = 255
    return Image.fromarray(shades.round().astype(np.uint8)).convert("RGB")


def check_picture(path: Path) -> None:
    """Raise as ``read_picture`` of a file that is missing or does not begin as a picture; what follows is not read."""
    with _opened(path):
        pass


def _is_picture(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            _begun(file, path)
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with open_regular(path) as file:
        try:
            with _begun(file, path) as picture:
                pixels = picture.width * picture.height
                if pixels > MOST_PIXELS:
                    raise ValueError(f"{pixels:,} pixels, and at most {MOST_PIXELS:,} are read")
                if 2 * pixels <= MOST_PIXELS:
                    yield picture
                    return
                # One at a time, for the memory that each takes; filters of warnings are the whole process's.
                with _LARGE, warnings.catch_warnings():
                    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                    yield picture
        except MemoryError:
            raise
        except Exception as error:  # whatever decoders raise of malformed files, which does not name them
            raise ValueError(f"{path}: not a readable image ({error})") from error


def _begun(file: BinaryIO, path: Path) -> Image.Image:
    """A picture of which the head is read, by the first format that takes it; raises a ValueError that says why none.

    ``Image.open`` asks the same formats, but warns and refuses by a limit that the whole process shares.
    """
    Image.init()
    start, why = file.read(16), "of no format that Pillow reads pictures of"
    for name, (factory, accept) in Image.OPEN.items():
        if name in _NO_PICTURES:
            continue
        try:
            known = accept(start) if accept else Image.EXTENSION.get(path.suffix.lower()) == name
            if isinstance(known, str):  # what Pillow was built without
                raise ValueError(known)
            if known:
                file.seek(0)
                return factory(file, "")
        except Exception as error:  # as in _opened
            why = f"{name}: {error}"
    raise ValueError(why)
