"""What kind a file of features is: by what it begins with, else by its name."""

from __future__ import annotations

from pathlib import Path

from crossret.files.regular import open_regular

FOLDER = "a folder"
_ENDINGS = {
    **{ending: ending for ending in (".npy", ".npz", ".h5", ".safetensors", ".pt")},
    ".hdf5": ".h5",
    ".pth": ".pt",
}


def kind_of(path: Path) -> str:
    """``FOLDER``, ".npy", ".npz", ".h5", ".safetensors", ".pt" or ".tsv", also of x.tsv.0.

    Raises:
        OSError: there is nothing, or it cannot be read.
        ValueError: it is none of these; names it.
    """
    if path.is_dir():
        return FOLDER
    with open_regular(path) as file:
        begin = file.read(9)
    ending = _ENDINGS.get(path.suffix.lower())
    if begin.startswith(b"\x93NUMPY"):
        return ".npy"
    if begin.startswith(b"\x89HDF"):
        return ".h5"
    if begin.startswith(b"PK\x03\x04"):  # of NumPy and of torch.save
        return ending if ending == ".npz" else ".pt"
    if begin[4:] == b"\0\0\0\0{":  # a header in JSON after its length, which is less than 4 GiB
        return ".safetensors"
    kind = ".tsv" if ".tsv" in path.suffixes[-2:] else ending
    if kind is None:
        raise ValueError(
            f"{path}: not features by what it begins with, nor by its name, which would end in .tsv, "
            f"{', '.join(_ENDINGS)}"
        )
    return kind
