"""One directory, one process."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from crossret import system
from crossret.files.naming import named_errors, renamed_errors

LOCK = ".crossret-lock"
_LONGEST_NOTE = 300  # bytes; what a lock says of its owner is a name and a number


@contextmanager
def locked(directory: str | os.PathLike[str], *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Be the only process that works in ``directory``, which may be renamed meanwhile, while the block runs.

    A hidden file in it says who that is, and is gone after the block. The system unlocks it when the process ends,
    however it ends. Where the file system has no locks there is none. Other processes that this one starts may go on in
    the directory only if they do not lock it themselves.

    Args:
        directory: one that is there.
        wait: for whoever has it, instead of an error.
        name: of that file; one of another name keeps out only who takes this one, too.

    Raises:
        BlockingIOError: another process, or another block of this one, is at work there; the error names it.
        OSError: the directory is missing or cannot be written; names it. ValueError: the lock is no regular file.
    """
    while True:
        with lock_file(directory, name=name) as (folder, file):
            try:
                system.lock(file, wait=wait)
            except BlockingIOError:
                raise in_use(directory, file.read(_LONGEST_NOTE)) from None
            except OSError:  # no locks here
                pass
            if not os.fstat(file.fileno()).st_nlink:  # removed by who had it, between opening and locking
                continue
            try:
                with named_errors(directory):
                    file.truncate()
                    file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                    file.flush()
                yield
                return
            finally:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)


def in_use(directory: str | os.PathLike[str], note: bytes = b"") -> BlockingIOError:
    """The error of a directory that another process works in, whose lock says so much of it."""
    owner = note.decode(errors="replace").strip() or "another process"
    at_work = f"in use by {owner}; wait for it or choose another directory"
    return BlockingIOError(errno.EWOULDBLOCK, at_work, os.fspath(directory))


def owner_of(directory: Path) -> bytes:
    """What the lock of a directory says of its owner; nothing where it cannot be read."""
    with suppress(OSError, ValueError), lock_file(directory, create=False) as (_, file):
        return file.read(_LONGEST_NOTE)
    return b""


@contextmanager
def lock_file(
    directory: str | os.PathLike[str], *, create: bool = True, name: str = LOCK
) -> Iterator[tuple[int, BinaryIO]]:
    """The open directory, which stays the same whatever its name becomes, and the open file in it that is locked.

    Raises:
        OSError: either cannot be opened; names the directory. ValueError: the file is no regular one.
    """
    folder = os.open(directory, system.PATH_ONLY)
    try:
        # Another's symbolic link would have a file elsewhere overwritten, and a pipe waited for.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise ValueError(
                    f"{os.path.join(directory, name)}: not a regular file, so that the directory cannot be locked: "
                    "remove it"
                )
        with renamed_errors(Path(name), directory):
            # Not opened for writing alone: whoever does not get the lock reads whose it is, and truncates nothing.
            flags = os.O_RDWR | system.NO_LINK | (os.O_CREAT if create else 0)
            number = os.open(name, flags, 0o666, dir_fd=folder)
        with open(number, "r+b") as file:
            yield folder, file
    finally:
        os.close(folder)
