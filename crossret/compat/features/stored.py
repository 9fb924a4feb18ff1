"""Arrays in files of others, NumPy's, safetensors' or torch.save's: described by their headers, read when asked for."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_magic
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from crossret.compat.features.kinds import kind_of
from crossret.compat.features.rows import undamaged
from crossret.data.precomputed import LARGEST_IMAGE
from crossret.files.pickled import read_saved
from crossret.files.regular import LARGEST, open_regular
from crossret.files.tensors import read_header as read_tensor_header

_MEMBER = ".npy"  # how the names of arrays end in a zip file


@dataclass(frozen=True)
class Stored:
    """An array of numbers that has not been read.

    Attributes:
        place: the file and the array, by which errors call it.
        shape: its shape.
        dtype: what ``read`` gives, which is float32 of bfloat16.
        read: reads it.

    Raises:
        ValueError: it holds no real numbers, is empty, or larger than the features of any image; names the place.
    """

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[Any]]

    def __post_init__(self) -> None:
        if self.dtype.kind not in "fiu" or self.dtype.itemsize > 8:
            python = ", Python's objects, which are not read" if self.dtype.hasobject else ""
            raise ValueError(f"{self.place}: holds {self.dtype}{python}, not float16, float32 or float64")
        if 0 in self.shape:
            raise ValueError(f"{self.place}: has shape {self.shape}, which is empty")
        if math.prod(self.shape) * self.dtype.itemsize > LARGEST_IMAGE:
            raise ValueError(f"{self.place}: of shape {self.shape} it is larger than any image's")


@dataclass(frozen=True)
class Arrays:
    """The arrays of an image.

    Attributes:
        place: the file, and perhaps the row, by which errors call it.
        names: of the arrays; of one that has no name "".
        describe: describes the array of a name.
    """

    place: str
    names: Collection[str]
    describe: Callable[[str], Stored]


def read_header(stream: IO[bytes], place: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an array in NumPy's format, whose numbers come next.

    Raises:
        ValueError: it is no such array; names the place.
    """
    with undamaged(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes and literals: what they give is checked
        if read_magic(stream) != (1, 0):  # headers of later ones may be of gigabytes
            raise ValueError("of another version of the format than 1.0")
        return read_array_header_1_0(stream)


def of_numpy(stream: IO[bytes], place: str) -> Stored:
    """The array in NumPy's format that a stream is at; raises as ``read_header``, and in reading what is not whole."""
    shape, fortran, dtype = read_header(stream, place)
    size = math.prod(shape) * dtype.itemsize

    def read() -> NDArray[Any]:
        with undamaged(place):
            contents = stream.read(size)
            more = stream.read(1)  # none, and at the end of a member its checksum is compared
        if len(contents) != size or more:
            raise ValueError(f"{place}: cut short or padded: an array of shape {shape} has {size} bytes")
        array = np.frombuffer(contents, dtype)
        return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)

    return Stored(place, shape, dtype, read)


def of_tensor(tensor: Any, place: str) -> Stored:
    """A tensor that is in memory or mapped; a ValueError that names the place where it is none."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ValueError(f"{place}: not a tensor of numbers, but {type(tensor).__name__}")
    name = "float32" if tensor.dtype == torch.bfloat16 else str(tensor.dtype).removeprefix("torch.")
    if not hasattr(np, name):
        raise ValueError(f"{place}: a tensor of {name}, not of float16, bfloat16, float32 or float64")
    dtype = np.dtype(name)
    read = tensor.float if tensor.dtype == torch.bfloat16 else tensor.detach
    return Stored(place, tuple(tensor.shape), dtype, lambda: read().numpy(force=True))


def arrays_in(contents: Any, place: str) -> Arrays:
    """Tensors by their names, or one without; what is none is told when it is described."""
    tensors = {str(name): value for name, value in contents.items()} if isinstance(contents, dict) else {"": contents}
    return Arrays(place, tensors, lambda name: of_tensor(tensors[name], f"{place}: {name}" if name else place))


def read_tensors(path: Path) -> Any:
    """What a file of tensors holds: of safetensors a dictionary by name, of torch.save its object. Tensors are mapped.

    Raises:
        OSError: the file cannot be read. ValueError: it is no such file; names it.
    """
    if kind_of(path) != ".safetensors":
        return read_saved(path)
    names, _ = read_tensor_header(path)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in names}


@contextmanager
def arrays_of(path: Path) -> Iterator[Arrays]:
    """The arrays of one image's file, .npy, .npz, .safetensors or .pt, which is open meanwhile.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is none of one image, or an array is none; names the file and the array.
    """
    kind = kind_of(path)
    if os.path.getsize(path) > LARGEST:
        raise ValueError(f"{path}: has more than {LARGEST:,} bytes, which no image's features have")
    if kind == ".npy":
        with open_regular(path) as file:
            stored = of_numpy(file, str(path))
            yield Arrays(str(path), [""], lambda _: stored)
    elif kind == ".npz":
        with ExitStack() as files:
            with undamaged(path):
                archive = files.enter_context(zipfile.ZipFile(path))
            names = [name.removesuffix(_MEMBER) for name in archive.namelist() if name.endswith(_MEMBER)]
            yield Arrays(str(path), names, lambda name: _of_member(archive, name, f"{path}: {name}", files))
    elif kind in (".safetensors", ".pt"):
        yield arrays_in(read_tensors(path), str(path))
    else:
        raise ValueError(f"{path}: a {kind} file, which is not one image's")


def _of_member(archive: zipfile.ZipFile, name: str, place: str, files: ExitStack) -> Stored:
    with undamaged(place):
        member = files.enter_context(archive.open(name + _MEMBER))
    # Others are decompressed in pieces of any size: a few bytes may take all memory.
    if archive.getinfo(name + _MEMBER).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{place}: neither stored nor deflated, as NumPy's members are")
    return of_numpy(member, place)
