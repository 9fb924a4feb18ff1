"""One directory, one process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from crossret.files.naming import renamed_errors

LOCK = ".crossret-lock"
_LONGEST_NOTE = 300  # bytes; what a lock says of its owner is a name and a number


@contextmanager
def locked(directory: str | os.PathLike[str], *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Be the only process that works in ``directory`` while the block runs.

    A hidden file in it says who that is, and is gone after the block. The system unlocks it when the process ends,
    however it ends. Other processes that this one starts may go on in the directory only if they do not lock it
    themselves.

    Args:
        directory: one that is there.
        wait: for whoever has it, instead of an error.
        name: of that file; one of another name keeps out only who takes this one, too.

    Raises:
        BlockingIOError: another process, or another block of this one, is at work there; the error names it.
        OSError: the directory is missing or cannot be written; names it.
    """
    path = Path(directory, name)
    with renamed_errors(path, directory), lock_file(path, directory, wait=wait):
        yield


@contextmanager
def lock_file(path: Path, known: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold a lock as ``locked`` does, by a named file; errors call it ``known``."""
    lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        owner = "another process"
        with suppress(OSError), open(path, "rb") as file:
            owner = file.read(_LONGEST_NOTE).decode(errors="replace").strip() or owner
        at_work = f"in use by {owner}; wait for it or choose another directory"
        raise BlockingIOError(errno.EWOULDBLOCK, at_work, os.fspath(known)) from None
    try:
        with suppress(OSError):  # a full disk
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who waits for it finds it gone, and makes another
        lock.release()
