"""Opening of features by their kind, with its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crossret.compat.features.arrays import ArrayFile
from crossret.compat.features.bottom_up import BottomUpFiles
from crossret.compat.features.folder import Folder
from crossret.compat.features.hdf5 import Hdf5File
from crossret.compat.features.kinds import FOLDER, kind_of
from crossret.compat.features.rows import Source
from crossret.compat.features.tensors import TensorFile

_Open = Callable[..., Source]
_NAMES = ("dataset", "box_dataset")
_KINDS: dict[str, tuple[_Open, tuple[str, ...]]] = {
    ".tsv": (BottomUpFiles, ("ids",)),
    ".npy": (ArrayFile, ("boxes",)),
    ".h5": (Hdf5File, _NAMES),
    ".safetensors": (TensorFile, ("ids", *_NAMES)),
    ".pt": (TensorFile, ("ids", *_NAMES)),
    FOLDER: (Folder, ("ids", "boxes", *_NAMES)),
}


def takes_ids(path: Path) -> bool:
    """Whether ids are an option of what is there; raises as ``kind_of``."""
    return "ids" in _KINDS.get(kind_of(path), (None, ()))[1]


def open_source(paths: Sequence[Path], **options: Any) -> Source:
    """The source of what is at a path, or of several .tsv files.

    Args:
        paths: one or several.
        options: of the source's class; None is as not given.

    Raises:
        OSError: a file cannot be read.
        ValueError: an option is for other kinds, as the command's it is named; or as ``kind_of`` and the source.
    """
    kind = kind_of(paths[0])
    if kind not in _KINDS:
        raise ValueError(f"{paths[0]}: a {kind} file is read as one image's: name the folder that it is in")
    opened, taken = _KINDS[kind]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in taken:
            kinds = ", ".join(other for other, (_, names) in _KINDS.items() if name in names)
            raise ValueError(f"--{name.replace('_', '-')} is for {kinds}, and {paths[0]} is none of these")
    for path in paths[1:]:
        if kind != ".tsv" or kind_of(path) != kind:
            raise ValueError(f"{path}: after {paths[0]}, but several may only be .tsv files")
    return opened(paths if kind == ".tsv" else paths[0], **given)
