"""Arrays as .npy files: those of others, mapped when they are what is expected; our own, larger than memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from crossret import system
from crossret.files.atomic import atomic_write
from crossret.files.regular import check_regular
from crossret.files.unicode import shortened


def map_array(
    path: str | os.PathLike[str], *, ndim: int | tuple[int, ...], dtypes: Sequence[str], any_order: bool = False
) -> np.memmap[tuple[int, ...], np.dtype[Any]]:
    """Memory-map an array of numbers in C order; nothing in the file is executed and nothing is allocated for it.

    Args:
        path: the .npy file, of format version 1.0 or 2.0.
        ndim: dimensions that it must have, or numbers of them that it may have, none of them empty.
        dtypes: the dtypes that it may have, as the format spells them: "<f4" is little-endian float32.
        any_order: whether it may be big-endian or in Fortran order as well.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is not such an array, or is shorter or longer than its header says; names the file.
    """
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd escapes and literals, whose values are checked
            array = open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy fails in a dozen ways on what is malformed
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: not a readable .npy file, or one cut short ({shortened(why)})") from error
    if (array.dtype.newbyteorder("<") if any_order else array.dtype).str not in dtypes:
        expected = ", ".join(np.dtype(name).name for name in dtypes)
        raise ValueError(f"{path}: expected dtype {expected} in little-endian order, got {array.dtype.str!r}")
    ranks = ndim if isinstance(ndim, tuple) else (ndim,)
    if array.ndim not in ranks or array.size == 0:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{path}: expected {expected} dimensions, none of them empty, got shape {array.shape}")
    if not array.flags.c_contiguous and not any_order:
        raise ValueError(f"{path}: the array is in Fortran order; save it in C order")
    size, expected_size = os.path.getsize(path), array.offset + array.nbytes
    if size != expected_size:
        raise ValueError(
            f"{path}: {size} bytes, but an array of shape {array.shape} takes {expected_size}: truncated or padded"
        )
    return array


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
        array = open_memmap(file.name, mode="w+", dtype="<f4", shape=shape)
        # A map of a file with holes would end the process, not the call, when the disk is full.
        system.reserve(file, array.offset + array.nbytes)
        mapping: Any = array.base

        def write(rows: slice, columns: slice, block: NDArray[np.floating]) -> None:
            array[rows, columns] = block
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
    """Write a header of format version 1.0; NumPy makes it as long whatever the number of rows."""
    write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
