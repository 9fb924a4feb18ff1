"""Files to read: regular ones alone, because to open a pipe would wait for its other end, perhaps for ever."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

# How large files may be that are read whole, in bytes: somebody's mistake is not to take all memory. A vocabulary of a
# million words has 40 MiB as JSON; captions, groundings and logs have a line for each of millions of items, and 12
# million captions a gigabyte.
LARGEST, LARGEST_LINES = 2**26, 2**31
_PART = 2**20

_KINDS = (
    (stat.S_ISFIFO, "a pipe: save what comes out of it as a file first"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
)


def check_regular(path: str | os.PathLike[str]) -> None:
    """What every reader asks first.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: its directory cannot be read.
        ValueError: it is something else than a regular file, such as the pipe of a shell's ``<(...)``; names it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise ValueError(f"{path}: not a regular file, but {kind}")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read bytes.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: as ``check_regular``.
    """
    check_regular(path)
    return open(path, "rb")


def read_regular(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """All bytes of a file.

    Args:
        path: the file.
        largest: how many it may have.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: as ``check_regular``, or it is larger; names it, its size and the limit.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(path, size, largest)
        parts = [file.read(size)]
        # Files of the system have a size of 0, and others may be growing.
        while part := file.read(_PART):
            parts.append(part)
            size += len(part)
            _check_size(path, size, largest)
    return b"".join(parts)


def _check_size(path: str | os.PathLike[str], size: int, largest: int) -> None:
    if size > largest:
        raise ValueError(f"{path}: has {size:,} bytes, and at most {largest:,} are read of such a file")
