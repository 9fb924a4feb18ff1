"""Checkpoints that torch.save wrote: tensors, plain values and options come out of them, and nothing in them is run."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from typing import Any, BinaryIO

import torch

from crossret.files.regular import open_regular

_ZIP = b"PK\x03\x04"  # how a zip file of torch.save begins
_LONGEST_NAME = 200  # characters
_REFUSED = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")  # torch's words


class _Dtype:
    """Stand-in for NumPy's dtype."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


def _scalar(*_: object) -> None:
    """Stand-in for a NumPy scalar: a recall of the training, which nobody reads here."""


_ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    Namespace,
    (_Dtype, "numpy.dtype"),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def read_saved(path: str | os.PathLike[str]) -> Any:
    """The object that torch.save wrote; its tensors are on the CPU, and mapped where the format lets them be.

    Tensors, containers, plain values, ``argparse.Namespace`` and NumPy's scalars are known; the last are None in what
    comes out. Anything else that a file names is refused before it is looked up.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is no such file, or names what could run code; names the file.
    """
    with open_regular(path) as file:  # errors of the system stay what they are
        zipped = file.read(len(_ZIP)) == _ZIP  # torch tells by these bytes, too
    try:
        if zipped:
            _check_stored(path)
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on how the file was written: it is readable or an error
            # Mapped, a tensor takes no memory before it is read, and none that lies outside the file can be made.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a malformed file can raise anything
        refused = _REFUSED.search(str(error))
        if refused is not None:
            name = ascii(refused[1])[1:-1][:_LONGEST_NAME]  # may have any characters, also a terminal's commands
            raise ValueError(f"{path}: refused, as it asks for {name}; nothing of it has been run") from error
        raise ValueError(f"{path}: not a readable checkpoint of torch.save ({type(error).__name__})") from error


def check_pickle(file: BinaryIO, size: int) -> None:
    """Look through a pickle of so many bytes, from its beginning, and go back there.

    Raises:
        pickle.UnpicklingError: it numbers an object beyond its bytes: room is made for as many as a number says.
        Exception: it is malformed, which can raise anything.
    """
    for operation, number, _ in pickletools.genops(file):
        if operation.name.endswith("PUT") and int(number or 0) > size:
            raise pickle.UnpicklingError(f"object number {number}")
    file.seek(0)


def _check_stored(path: str | os.PathLike[str]) -> None:
    """Raise where a member is compressed: torch.save compresses none, and one may be a thousand times the file."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise zipfile.BadZipFile(f"{member.filename} is compressed")
