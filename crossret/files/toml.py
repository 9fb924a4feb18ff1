"""TOML: settings that people read and change."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import tomli_w

from crossret.files.atomic import atomic_write
from crossret.files.regular import read_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_SETTINGS = 2**20  # bytes of a file, of which all settings of a command take a few thousand


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table that a TOML file is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not TOML, named with the place; or as ``read_regular``.
    """
    contents = read_regular(path, LARGEST_SETTINGS)
    try:
        return tomllib.loads(contents.decode())
    except RecursionError:
        raise ValueError(f"{path}: not TOML (nested too deeply)") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: not TOML ({error})") from error


def write_toml(path: str | os.PathLike[str], values: Mapping[str, Any], comment: str) -> None:
    """Write a table beneath lines of comment, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    with atomic_write(path) as file:
        file.write((lines + tomli_w.dumps(values)).encode())
