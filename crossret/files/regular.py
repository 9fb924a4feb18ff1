"""Files to read: regular ones alone, because to open a pipe would wait for its other end, perhaps for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

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


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: as ``check_regular``.
    """
    check_regular(path)
    return Path(path).read_bytes()
