"""Writing files so that a reader sees the old contents or the new, never a part of either."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from crossret import system
from crossret.files.naming import named_errors, renamed_errors

_SUFFIX = ".part"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file, to write and to read, that takes the place of ``path`` only once it is complete.

    The bytes go to a new hidden file in the same directory (a rename across file systems is a copy, and a copy can be
    interrupted). On leaving the block the file is flushed to the disk and renamed over ``path``; if the block raises,
    the new file is removed and ``path`` is as it was. A process killed inside the block leaves at most a hidden
    ``.crossret-*.part`` beside an untouched ``path``; the next write of any file there removes it. Where ``path`` is a
    symbolic link, the file that it points to is replaced.

    Raises:
        FileExistsError: ``path`` is something that cannot be replaced by a file: a directory, a pipe, a device.
        OSError: the directory does not exist or cannot be written, or the disk is full; names ``path``.
    """
    _check_replaceable(path)
    target = Path(os.path.realpath(path))
    # Not of the target's name, which may be as long as a name can be.
    partial = target.parent / f".crossret-{secrets.token_hex(8)}{_SUFFIX}"
    with named_errors(path), renamed_errors(partial, path):
        _remove_abandoned(target.parent)
        with _temporary(partial) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        _sync_directory(target.parent)


def _check_replaceable(path: str | os.PathLike[str]) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", os.fspath(path))


@contextmanager
def _temporary(path: Path) -> Iterator[BinaryIO]:
    """A new file, removed if the block raises, and locked until it ends: ``_remove_abandoned`` spares locked files."""
    while True:
        # "x" honours the umask, so the file gets the permissions that a plain open() would have given it.
        with open(path, "x+b") as file:
            try:
                with suppress(OSError):  # where there are no locks, nobody can take one and remove the file
                    system.lock(file)
                if path.exists():  # not taken for abandoned before it was locked
                    yield file
                    return
            except BaseException:
                path.unlink(missing_ok=True)
                raise


def _remove_abandoned(directory: Path) -> None:
    """Remove what killed writers left: the system unlocks a file when the process that has it ends."""
    for path in directory.glob(f".crossret-*{_SUFFIX}"):
        with suppress(OSError), open(path, "r+b") as file:  # to write, or network file systems do not lock it
            system.lock(file)
            path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a loss of power: it is an entry of the directory, not of the file."""
    if os.name == "nt":  # where directories are not opened
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
