"""Arrays as .npy files: those of others, mapped when they are what is expected; our own, larger than memory."""

from __future__ import annotations

import ast
import math
import mmap
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret import system
from crossret.files.atomic import atomic_write
from crossret.files.regular import open_regular

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}  # 3.0 is for field names that are not Latin-1, which plain numbers have not
_LONGEST_HEADER = 10_000  # bytes; an array of numbers needs a hundred
_GROWING_HEADER = 128  # bytes, of a file whose header is rewritten when its shape is known
_NUMBERS = re.compile(r"[<>=|]?[biufcO]\d{0,2}")


def map_array(
    path: str | os.PathLike[str], *, ndim: int | tuple[int, ...], dtypes: Sequence[str]
) -> np.memmap[tuple[int, ...], np.dtype[Any]]:
    """Memory-map an array of numbers in C order; nothing in the file is executed and nothing is allocated for it.

    The header is read here and not by NumPy, whose readers evaluate it before they look at its length, warn on the
    terminal and fail in a dozen ways on a malformed one.

    Args:
        path: the .npy file, of format version 1.0 or 2.0.
        ndim: dimensions that it must have, or numbers of them that it may have, none of them empty.
        dtypes: the dtypes that it may have, as the format spells them: "<f4" is little-endian float32.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is not such an array, or is shorter or longer than its header says; names the file.
    """
    with open_regular(path) as file:
        try:
            header = _read_header(file)
            shape, descr = _read_shape(header), _read_descr(header)
        except ValueError as error:
            raise ValueError(f"{path}: not a readable .npy file ({error})") from error
        if "O" in descr:
            raise ValueError(f"{path}: holds pickled Python objects, which are never loaded")
        if descr not in dtypes:
            expected = ", ".join(np.dtype(name).name for name in dtypes)
            raise ValueError(f"{path}: expected dtype {expected} in little-endian order, got {descr!r}")
        ranks = ndim if isinstance(ndim, tuple) else (ndim,)
        if len(shape) not in ranks or 0 in shape:
            expected = " or ".join(map(str, ranks))
            raise ValueError(f"{path}: expected {expected} dimensions, none of them empty, got shape {shape}")
        if header["fortran_order"]:
            raise ValueError(f"{path}: the array is in Fortran order; save it in C order")
        dtype = np.dtype(descr)
        # Python's integers: a product of hostile dimensions does not overflow.
        expected_bytes = file.tell() + math.prod(shape) * dtype.itemsize
        actual_bytes = os.fstat(file.fileno()).st_size
        if actual_bytes != expected_bytes:
            raise ValueError(
                f"{path}: {actual_bytes} bytes, but an array of shape {shape} takes {expected_bytes}: "
                "truncated or padded"
            )
        return np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape)


@contextmanager
def write_blocks(
    path: str | os.PathLike[str], shape: tuple[int, int]
) -> Iterator[Callable[[slice, slice, NDArray[np.floating]], None]]:
    """Write a float32 matrix in blocks, atomically: ``write(rows, columns, block)``, each place once, in any order.

    The file is mapped, and what is written leaves the memory of this process at once, so that the matrix may be larger.

    Raises:
        OSError: as ``atomic_write``; the room on the disk is asked for before anything is computed.
    """
    with atomic_write(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        offset = file.tell()
        file.flush()
        size = offset + 4 * math.prod(shape)
        # A map of a file with holes would end the process, not the call, when the disk is full.
        system.reserve(file, size)
        with mmap.mmap(file.fileno(), size) as mapping:

            def write(rows: slice, columns: slice, block: NDArray[np.floating]) -> None:
                # An array of its own for each call: one that outlived an error would keep the map from being closed.
                np.ndarray(shape, "<f4", mapping, offset)[rows, columns] = block
                system.drop_pages(mapping)

            yield write


@contextmanager
def write_rows(
    path: str | os.PathLike[str], row_shape: tuple[int, ...], dtype: str
) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write an array of (rows, *row_shape) in order, atomically: ``write(block)`` adds the rows of a block.

    How many there are need not be known before all are written, and none stays in memory.

    Args:
        path: the .npy file.
        row_shape: shape of a row.
        dtype: as the format spells it, "<f4" or "<i8"; blocks of another are cast, but floating point to no integers.

    Raises:
        OSError: as ``atomic_write``.
        TypeError, ValueError: a block is of another kind, its rows are of another shape, or there are none at the end.
    """
    rows = 0
    with atomic_write(path) as file:
        file.write(_growing_header((0, *row_shape), dtype))

        def write(block: NDArray[Any]) -> None:
            nonlocal rows
            if block.shape[1:] != row_shape:
                raise ValueError(f"{path}: rows of shape {block.shape[1:]} after others of {row_shape}")
            file.write(np.ascontiguousarray(block.astype(dtype, casting="same_kind", copy=False)).data)
            rows += len(block)

        yield write
        if not rows:
            raise ValueError(f"{path}: no rows to write")
        file.seek(0)
        file.write(_growing_header((rows, *row_shape), dtype))


def _growing_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """A header of format version 1.0 that is as long whatever the number of rows."""
    start = _MAGIC + bytes((1, 0))
    length = _GROWING_HEADER - len(start) - _LENGTH_BYTES[1, 0]
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(length - 1) + "\n"
    return start + length.to_bytes(_LENGTH_BYTES[1, 0], "little") + text.encode("latin-1")


def _read_header(file: BinaryIO) -> dict[str, Any]:
    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or len(start) != len(_MAGIC) + 2:
        raise ValueError("it does not begin as one")
    version = (start[-2], start[-1])
    if version not in _LENGTH_BYTES:
        raise ValueError(f"version {version[0]}.{version[1]}, expected 1.0 or 2.0")
    length_bytes = file.read(_LENGTH_BYTES[version])
    length = int.from_bytes(length_bytes, "little")
    if len(length_bytes) != _LENGTH_BYTES[version] or length > _LONGEST_HEADER:
        raise ValueError("the length of its header is cut off or absurd")
    text = file.read(length)
    if len(text) != length:
        raise ValueError("its header is cut off")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes and literals: what they give is checked
            header = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("its header is not a Python dictionary") from error
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header is not a dictionary of descr, fortran_order and shape")
    if type(header["fortran_order"]) is not bool:
        raise ValueError("fortran_order is neither True nor False")
    return header


def _read_shape(header: dict[str, Any]) -> tuple[int, ...]:
    shape = header["shape"]
    # bool is an int in Python: (True, True, 8) would pass for (1, 1, 8).
    if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("shape is not a tuple of sizes")
    return shape


def _read_descr(header: dict[str, Any]) -> str:
    descr = header["descr"]
    if not isinstance(descr, str) or not _NUMBERS.fullmatch(descr):
        raise ValueError("its elements are not plain numbers")
    return descr
