"""Kinds of files of features."""

from __future__ import annotations

from pathlib import Path

from crossret.files.regular import open_regular

FOLDER = "a folder"
ENDINGS = {ending: ending for ending in (".tsv", ".npy", ".npz", ".h5", ".safetensors", ".pt")}
ENDINGS |= {".hdf5": ".h5", ".pth": ".pt"}


def kind_of(path: Path) -> str:
    """``FOLDER``, ".npy", ".npz", ".h5", ".safetensors", ".pt" or ".tsv", by what it begins with, else by its name.

    Raises:
        OSError: there is nothing, or it cannot be read.
        ValueError: it is none of these; names it.
    """
    if path.is_dir():
        return FOLDER
    with open_regular(path) as file:
        begin = file.read(9)
    named = ENDINGS.get(path.suffix.lower(), ".tsv" if ".tsv" in path.suffixes[-2:] else None)  # x.tsv.0
    if begin.startswith(b"PK\x03\x04"):  # a zip file, by NumPy or torch.save
        return ".npz" if named == ".npz" else ".pt"
    if begin[4:] == b"\0\0\0\0{":  # a header in JSON after its length, which is less than 4 GiB
        return ".safetensors"
    kind = {b"\x93NUM": ".npy", b"\x89HDF": ".h5"}.get(begin[:4], named)
    if kind is None:
        raise ValueError(f"{path}: not features by what it begins with, nor by its name: {', '.join(ENDINGS)}")
    return kind
