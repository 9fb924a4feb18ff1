"""Data directories made of others: their splits, and links to their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from crossret.data.precomputed import MAPPING, ids_path, mapping_path, split_path, splits_in, without_features
from crossret.files.naming import named_errors
from crossret.files.regular import open_regular


def list_splits(data: Path) -> list[str]:
    """The splits that a data directory has features of, sorted.

    Raises:
        ValueError: there are none.
    """
    splits = splits_in(data)
    if not splits:
        raise ValueError(f"{data}: no SPLIT_ims.npy in it; {without_features(data)}")
    return splits


def link_split(source: Path, directory: Path, split: str, endings: Iterable[str]) -> None:
    """Link a split's files whose names end so, and those in directories, as far as they are there, and what tells its
    images' files.
    """
    for ending in endings:
        path, copy = (split_path(root, split, ending) for root in (source, directory))
        if path.is_dir():
            copy.mkdir()
            for file in path.iterdir():
                link_file(file, copy / file.name)
        elif path.exists():
            link_file(path, copy)
    mapping = mapping_path(ids_path(source, split))
    if mapping.exists() and not (directory / MAPPING).exists():
        link_file(mapping, directory / MAPPING)


def link_file(path: Path, name: Path) -> None:
    """Give a file another name, or copy it where that cannot be: on another file system, or one without links."""
    try:
        os.link(os.path.realpath(path), name)
    except OSError:
        # Not shutil.copyfile, which blames the file that it copies for a full disk.
        with open_regular(path) as file, named_errors(name), open(name, "xb") as copy:
            shutil.copyfileobj(file, copy)
