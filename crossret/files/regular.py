"""Files to read: regular ones, which can be mapped and read again, of sizes that memory holds."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

# How large files may be that are read whole, in bytes: somebody's mistake is not to take all memory. A vocabulary of a
# million words has 40 MiB as JSON; captions, groundings and logs have a line for each of millions of items, and 12
# million captions a gigabyte.
LARGEST, LARGEST_LINES = 2**26, 2**31


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check of every reader before it opens a file.

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
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device: save what comes out of it as a file first"
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
        if size <= largest:
            return file.read()
    raise ValueError(f"{path}: has {size:,} bytes, and at most {largest:,} are read of such a file")
