"""Errors of writing name the file that the user knows: not nothing, as on a full disk, and not a hidden one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def renamed_errors(hidden: Path, known: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of a hidden file or directory, and of what is in it, are errors of what the user knows in its place.

    Raises:
        OSError, ValueError: as in the block; names ``known``, or what is in it, where it named ``hidden``.
    """
    try:
        yield
    except OSError as error:
        name = error.filename
        if error.errno is None or not isinstance(name, (str, Path)) or not Path(name).is_relative_to(hidden):
            raise
        place = os.fspath(known) if Path(name) == hidden else os.path.join(known, Path(name).relative_to(hidden))
        raise OSError(error.errno, error.strerror, place) from error
    except ValueError as error:
        error.args = tuple(
            part.replace(os.fspath(hidden), os.fspath(known)) if isinstance(part, str) else part for part in error.args
        )
        raise
