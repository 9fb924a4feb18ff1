"""Errors of writing name the file: the system names none where it is the writing that fails, as on a full disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system that name no file, raised in the block, are errors of ``path``.

    Raises:
        OSError: as in the block; names ``path`` if it named nothing.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def write_file(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write a file that need not be there as a whole or not at all; see ``atomic_write`` for others.

    Raises:
        OSError: it cannot be written; names it.
    """
    with named_errors(path), open(path, "wb") as file:
        file.write(contents)
