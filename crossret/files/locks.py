"""One directory, one process."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossret.files.naming import named_errors
from crossret.files.regular import check_regular

LOCK = ".crossret-lock"
_LONGEST_NOTE = 300  # bytes; what a lock says of its owner is a name and a number


@contextmanager
def locked(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only process that works in ``directory`` while the block runs.

    The system unlocks it when the process ends, however it ends. A hidden file stays, which says who was last. Where
    the file system has no locks there is none. Other processes that this one starts may go on in the directory only if
    they do not lock it themselves.

    Raises:
        BlockingIOError: another process, or another block of this one, is at work there; the error names it.
        OSError: the directory is missing or cannot be written. ValueError: the lock is no regular file.
    """
    path = Path(directory) / LOCK
    if path.exists():
        check_regular(path)
    # Not opened for writing alone: whoever does not get the lock reads whose it is, and truncates nothing.
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = file.read(_LONGEST_NOTE).decode(errors="replace").strip()
            at_work = f"in use by {owner or 'another process'}; wait for it or choose another directory"
            raise BlockingIOError(error.errno, at_work, os.fspath(directory)) from None
        except OSError:  # no locks here
            yield
            return
        with named_errors(path):
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            file.flush()
        yield
