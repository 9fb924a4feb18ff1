"""Writing files so that a reader sees the old contents or the new, never a part of either."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that takes the place of ``path`` only once it is complete.

    The bytes go to a new hidden file in the same directory (a rename across file systems is a copy, and a copy can be
    interrupted). On leaving the block the file is flushed to the disk and renamed over ``path``; if the block raises,
    the new file is removed and ``path`` is as it was. A process killed inside the block leaves at most a hidden
    ``.name.*.tmp`` beside an untouched ``path``.

    Raises:
        OSError: the directory does not exist or cannot be written, or the disk is full.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        # "x" honours the umask, so the file gets the permissions that a plain open() would have given it.
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        with suppress(FileNotFoundError):
            partial.unlink()
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a loss of power: it is an entry of the directory, not of the file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
