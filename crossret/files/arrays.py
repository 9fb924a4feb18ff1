"""Arrays as .npy files: those of others, mapped when they are what is expected; our own, larger than memory."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret import system
from crossret.files.atomic import atomic_write
from crossret.files.regular import open_regular
from crossret.files.unicode import shortened

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_LONGEST_HEADER = 10_000  # bytes; an array of numbers needs a hundred


def map_array(
    path: str | os.PathLike[str], *, ndim: int | tuple[int, ...], dtypes: Sequence[str]
) -> np.memmap[tuple[int, ...], np.dtype[Any]]:
    """Memory-map an array of numbers in C order; nothing in the file is executed and nothing is allocated for it.

    Args:
        path: the .npy file, of format version 1.0 or 2.0.
        ndim: dimensions that it must have, or numbers of them that it may have, none of them empty.
        dtypes: the dtypes that it may have, as the format spells them: "<f4" is little-endian float32.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is not such an array, or is shorter or longer than its header says; names the file.
    """
    with open_regular(path) as file:
        start = BytesIO(file.read(_LONGEST_HEADER))  # NumPy would read a header of any length before it looks at that
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes and literals: what they give is checked
                read = _READERS[np.lib.format.read_magic(start)]
                shape, fortran_order, dtype = read(start)
        # NumPy fails in a dozen ways on what is malformed.
        except Exception as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{path}: not a readable .npy file ({shortened(why)})") from error
        if dtype.hasobject:
            raise ValueError(f"{path}: holds pickled Python objects, which are never loaded")
        if dtype.str not in dtypes:
            expected = ", ".join(np.dtype(name).name for name in dtypes)
            raise ValueError(f"{path}: expected dtype {expected} in little-endian order, got {dtype.str!r}")
        ranks = ndim if isinstance(ndim, tuple) else (ndim,)
        if len(shape) not in ranks or min(shape) < 1:
            expected = " or ".join(map(str, ranks))
            raise ValueError(f"{path}: expected {expected} dimensions, none of them empty, got shape {shape}")
        if fortran_order:
            raise ValueError(f"{path}: the array is in Fortran order; save it in C order")
        # Python's integers: a product of hostile dimensions does not overflow.
        expected_bytes = start.tell() + math.prod(shape) * dtype.itemsize
        actual_bytes = os.fstat(file.fileno()).st_size
        if actual_bytes != expected_bytes:
            raise ValueError(
                f"{path}: {actual_bytes} bytes, but an array of shape {shape} takes {expected_bytes}: "
                "truncated or padded"
            )
        return np.memmap(file, dtype=dtype, mode="r", offset=start.tell(), shape=shape)


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
        _write_header(file, shape, "<f4")
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
        _write_header(file, (0, *row_shape), dtype)

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
        _write_header(file, (rows, *row_shape), dtype)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: str) -> None:
    """Of format version 1.0; NumPy makes it as long whatever the number of rows."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
