"""Data directories made of others: their splits, links to their files, and a new one that is whole or not there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossret.data.precomputed import features_path
from crossret.files.naming import named_errors
from crossret.files.regular import open_regular


def list_splits(data: Path) -> list[str]:
    """The splits that a data directory has features of, sorted.

    Raises:
        ValueError: there are none.
    """
    suffix = features_path("", "").name
    splits = sorted(path.name.removesuffix(suffix) for path in data.glob(f"*{suffix}"))
    if not splits:
        raise ValueError(f"{data}: no SPLIT{suffix} in it")
    return splits


def check_new_directory(output: str | os.PathLike[str], data: Path) -> Path:
    """The real place of a directory to make of ``data``.

    Raises:
        FileExistsError: ``output`` is a file or not empty.
        ValueError: it is ``data`` or inside it.
    """
    target = Path(os.path.realpath(output))
    if Path(os.path.realpath(data)) in (target, *target.parents):
        raise ValueError(f"{output}: is {data} or inside it; choose a directory elsewhere")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{output}: not empty; choose a new or an empty directory")
    return target


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A hidden directory that becomes ``target``, absent or empty, when the block ends, and is removed if it raises.

    A process killed inside the block leaves it, a ``.crossret-*.tmp`` beside ``target``. Errors of files in it name
    those of ``target``, which the user knows.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".crossret-{secrets.token_hex(8)}.tmp"
    partial.mkdir()
    try:
        yield partial
        os.rename(partial, target)
    except BaseException as error:
        shutil.rmtree(partial)
        if isinstance(error, OSError) and isinstance(error.filename, (str, Path)):
            place = Path(error.filename)
            if place.is_relative_to(partial):
                name = os.fspath(target / place.relative_to(partial))
                raise OSError(error.errno, error.strerror, name) from error
        raise


def link_file(path: Path, name: Path) -> None:
    """Give a file another name, or copy it where that cannot be: on another file system, or one without links."""
    try:
        os.link(os.path.realpath(path), name)
    except OSError:
        # Not shutil.copyfile, which blames the file that it copies for a full disk.
        with open_regular(path) as file, named_errors(name), open(name, "xb") as copy:
            shutil.copyfileobj(file, copy)
