"""Directories that a command makes: whole or not there, never in the place of something, by one process at a time."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crossret.files.locks import LOCK, lock_file, locked
from crossret.files.naming import renamed_errors

_logger = logging.getLogger(__name__)
_MADE, _LOCKED = ".tmp", ".lock"  # a hidden directory, and who makes it


def user_cache() -> Path:
    """The user's cache of this program, in $XDG_CACHE_HOME or ~/.cache, which need not be there."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "crossret"


def check_new_directory(output: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> Path:
    """Check what ``new_directory`` checks first, for callers that have something to do before.

    Returns:
        The real place of ``output``.

    Raises:
        The errors of ``new_directory``.
    """
    target = Path(os.path.realpath(output))
    for source in sources:
        if Path(os.path.realpath(source)) in (target, *target.parents):
            raise ValueError(f"{output}: is {source} or inside it; choose a directory elsewhere")
    with suppress(FileNotFoundError), renamed_errors(target, output):
        os.stat(target)
        if not target.is_dir():
            raise FileExistsError(f"{output}: not a directory; choose a new or an empty one")
        if [path.name for path in target.iterdir()] == [LOCK]:  # left by a killed process, unless one is at work
            with locked(target):
                pass
        if any(target.iterdir()):
            raise FileExistsError(f"{output}: not empty; choose a new or an empty directory")
    _remove_abandoned(target.parent)
    lock = _hidden(target, _LOCKED)
    if lock.exists():  # its maker lives: the locks of killed ones are removed
        with lock_file(lock, output):
            pass
    return target


@contextmanager
def new_directory(output: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden directory that becomes ``output``, absent or empty, when the block ends, and is removed if it raises.

    It is beside ``output``, in directories that are made if needed and removed, if they are empty, where the block
    raises. No other process can begin to make ``output`` meanwhile. A process killed inside the block leaves hidden
    ``.crossret-*``; the next one to make a directory beside them removes these. Errors of files in it name those of
    ``output``, which the user knows.

    Args:
        output: the directory to make.
        sources: files and directories that it is made of, to which nothing may be added.

    Raises:
        FileExistsError: ``output`` is a file or not empty.
        BlockingIOError: another process is making it; the error names that.
        ValueError: it is one of ``sources`` or inside it.
        OSError: it cannot be made.
    """
    target = check_new_directory(output, *sources)
    hidden = _hidden(target, _MADE)
    lock = _hidden(target, _LOCKED)
    with _made(target.parent), renamed_errors(lock, output), lock_file(lock, output), renamed_errors(hidden, output):
        hidden.mkdir()
        try:
            if target.is_dir() and any(target.iterdir()):  # finished by another process since it was looked at
                raise FileExistsError(f"{output}: not empty; choose a new or an empty directory")
            yield hidden
            os.rename(hidden, target)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise


@contextmanager
def occupied(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only process that writes in a directory while the block runs.

    The directory is made if needed, with those that it is in. If the block raises, those that were made and are empty
    are removed.

    Raises:
        The errors of ``locked``; OSError: the directory cannot be made.
    """
    with _made(Path(directory)), locked(directory):
        yield


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    absent = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in absent:
            with suppress(OSError):
                path.rmdir()
        raise


def _hidden(target: Path, suffix: str) -> Path:
    """Hidden path, the same for every process that makes ``target``; of a fixed length, unlike its name."""
    return target.parent / f".crossret-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}{suffix}"


def _remove_abandoned(parent: Path) -> None:
    """Remove the hidden directories whose makers were killed: the system unlocks what a process has when it ends."""
    for lock in parent.glob(f".crossret-*{_LOCKED}"):
        with suppress(OSError), lock_file(lock, parent):
            abandoned = lock.with_suffix(_MADE)
            if abandoned.exists():
                _logger.info("%s: removed, as the process that made it was killed", abandoned)
                shutil.rmtree(abandoned, ignore_errors=True)
