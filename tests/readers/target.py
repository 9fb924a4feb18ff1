"""A reader of files from others, and what it is tried with: the files, and the part of one that a stranger chooses."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crossret.data import Vocabulary

IMAGES, REGIONS, DIM = 3, 2, 4
WORDS = Vocabulary(["cat", "dog", "mat"])
LARGEST_SEED = 2**16  # bytes: what is larger takes its time in every try


@dataclass(frozen=True)
class Part:
    """What of a file a stranger chooses: ``get`` takes it out of a file's bytes, ``put`` puts another in its place."""

    get: Callable[[bytes], bytes]
    put: Callable[[bytes, bytes], bytes]


WHOLE = Part(lambda whole: whole, lambda _, found: found)


@dataclass(frozen=True)
class Target:
    """A reader and the file of which strangers' bytes become a part.

    Attributes:
        make: writes valid files into an empty folder.
        file: the stranger's, one of these.
        read: reads the folder, and takes what was read as its user does.
        part: of the file.
        seeds: other valid contents of the part.
        raises: what else than an OSError and a ValueError is documented.
    """

    make: Callable[[Path], object]
    file: str
    read: Callable[[Path], object]
    part: Part = WHOLE
    seeds: Callable[[], list[bytes]] = list
    raises: tuple[type[Exception], ...] = ()

    @contextmanager
    def opened(self, folder: Path) -> Iterator[tuple[list[bytes], Callable[[bytes], bool]]]:
        """Seeds, and what tries the bytes that it is called with, in an empty folder: whether they are read."""
        with _quiet():
            self.make(folder)
        whole = (folder / self.file).read_bytes()
        yield [self.part.get(whole), *self.seeds()], partial(self._try, folder, whole)

    def _try(self, folder: Path, whole: bytes, found: bytes) -> bool:
        (folder / self.file).write_bytes(self.part.put(whole, found))
        try:
            with _quiet():
                self.read(folder)
        except (OSError, ValueError, *self.raises) as error:
            if str(folder) not in str(error):
                raise AssertionError(f"the error names no file: {error!r}") from error
            return False
        return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of the library are for users; those of others are of something that it should have refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        yield


def _header_of(contents: bytes) -> int:
    return 8 + int.from_bytes(contents[:8], "little")


def member(name: str) -> Part:
    """A file within a zip file, by how its name ends."""

    def get(whole: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            return archive.read(next(own for own in archive.namelist() if own.endswith(name)))

    def put(whole: bytes, found: bytes) -> bytes:
        contents = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(contents, "w") as changed:
            for own in archive.namelist():
                changed.writestr(own, found if own.endswith(name) else archive.read(own))
        return contents.getvalue()

    return Part(get, put)


HEADER = Part(
    lambda whole: whole[8 : _header_of(whole)],
    lambda whole, found: len(found).to_bytes(8, "little") + found + whole[_header_of(whole) :],
)
GZIPPED = Part(gzip.decompress, lambda _, found: gzip.compress(found, 1))


def randn(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def boxes(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.abs(randn(*shape, 4)).cumsum(-1).astype(np.float32)
