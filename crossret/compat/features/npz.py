"""NumPy's .npz, a zip file of arrays: each is described by its header, and read when asked for."""

from __future__ import annotations

import math
import warnings
import zipfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_magic
from numpy.typing import NDArray

from crossret.compat.features.rows import undamaged
from crossret.data.precomputed import LARGEST_IMAGE

_ENDING = ".npy"  # members' names end so


class Member:
    """An array of a file that is open: what has its shape and dtype, and is read by ``np.asarray``, once.

    Raises:
        ValueError: in each of these, where it is no such array; names the file and the array.
    """

    def __init__(self, place: str, archive: zipfile.ZipFile, name: str, files: ExitStack) -> None:
        self._place, self._archive, self._name, self._files = place, archive, name, files

    @cached_property
    def _opened(self) -> tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]:
        with undamaged(self._place), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd escapes and literals, whose values are checked
            stream = self._files.enter_context(self._archive.open(self._name))
            # Others are decompressed in pieces of any size, and headers of later versions may be of gigabytes.
            if self._archive.getinfo(self._name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("neither stored nor deflated")
            if read_magic(stream) != (1, 0):
                raise ValueError("of another version of the format than 1.0")
            return stream, read_array_header_1_0(stream)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._opened[1][0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._opened[1][2]

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        stream, (shape, fortran, _) = self._opened
        size = math.prod(shape) * self.dtype.itemsize
        with undamaged(self._place):
            if self.dtype.hasobject or size > LARGEST_IMAGE:
                raise ValueError(f"of shape {shape} and {self.dtype}, not an image's numbers")
            contents = stream.read(size)
            if len(contents) != size or stream.read(1):  # at the end the checksum is compared
                raise ValueError(f"not the {size} bytes of shape {shape}")
            array = np.frombuffer(contents, self.dtype)
        return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def members_of(path: Path, files: ExitStack) -> dict[str, Member]:
    """The arrays of a file by their names, as long as ``files`` are open; a ValueError where it is no such file."""
    with undamaged(path):
        archive = files.enter_context(zipfile.ZipFile(path))
        names = [name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)]
    return {name: Member(f"{path}: {name}", archive, name + _ENDING, files) for name in names}
