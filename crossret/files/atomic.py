"""Writing files so that a reader sees the old contents or the new, never a part of either."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from crossret import system

_DIGITS = 16
_HIDDEN = f".crossret-{'[0-9a-f]' * _DIGITS}-{'[0-9a-f]' * _DIGITS}.tmp"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file, to write and to read, that takes the place of ``path`` only once it is complete.

    The bytes go to a new hidden file in the same directory (a rename across file systems is a copy, and a copy can be
    interrupted). On leaving the block the file is flushed to the disk and renamed over ``path``; if the block raises,
    the new file is removed and ``path`` is as it was. A process killed inside the block leaves at most a hidden
    ``.crossret-*.tmp`` beside an untouched ``path``; the next write of any file there removes it. Where ``path`` is a
    symbolic link, the file that it points to is replaced.

    Raises:
        FileExistsError: ``path`` is something that cannot be replaced by a file: a directory, a pipe, a device.
        OSError: the directory does not exist or cannot be written, or the disk is full; names ``path``.
    """
    _check_replaceable(path)
    target = Path(os.path.realpath(path))
    # Of a fixed length, unlike the target's name, which may be as long as a name can be.
    family = f".crossret-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:_DIGITS]}-"
    try:
        _remove_abandoned(target.parent)
        with _temporary(target.parent, family) as (partial, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        _sync_directory(target.parent)
    except OSError as error:
        # The system's errors of the hidden file, or of no named file as when the disk is full, are errors of path.
        if error.errno is None or not (error.filename is None or family in str(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _check_replaceable(path: str | os.PathLike[str]) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", os.fspath(path))


@contextmanager
def _temporary(directory: Path, family: str) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file, removed if the block raises, and locked until it ends: ``_remove_abandoned`` spares locked files."""
    while True:
        partial = directory / f"{family}{secrets.token_hex(_DIGITS // 2)}.tmp"
        # "x" honours the umask, so the file gets the permissions that a plain open() would have given it.
        with open(partial, "x+b") as file:
            try:
                with suppress(OSError):  # where there are no locks, nobody can take one and remove the file
                    system.lock(file, wait=True)
                if os.fstat(file.fileno()).st_nlink:  # not taken for abandoned before it was locked
                    yield partial, file
                    return
            except BaseException:
                with suppress(FileNotFoundError):
                    partial.unlink()
                raise


def _remove_abandoned(directory: Path) -> None:
    """Remove what killed writers left: the system unlocks a file when the process that has it ends."""
    for path in directory.glob(_HIDDEN):
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
