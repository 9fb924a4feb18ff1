"""Files of an index of pictures.

A directory holds ``index.json``, which encoder made the tokens; ``model``, as ``save_model`` writes one; and
``images``, shards of what the model encoded. In a shard ``pictures.json`` says of which files its items are. Without
``model`` the encoder is one of late interaction, whose tokens are scored by MaxSim with those of texts.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from crossret.data.named_encoder import NamedEncoder
from crossret.files.json import read_json_object, write_json

INDEX, MODEL_DIRECTORY, PICTURES = "index.json", "model", "pictures.json"
_FORMAT = "crossret index 1"


@dataclass(frozen=True)
class Picture:
    """A file as it was when it was encoded.

    Attributes:
        folder: the folder that was indexed, an absolute path.
        name: of the file within it, with "/".
        size: of the file, in bytes.
        changed: when it was last changed, in nanoseconds.
    """

    folder: str
    name: str
    size: int
    changed: int

    @property
    def path(self) -> Path:
        """Where it was."""
        return Path(self.folder, self.name)

    @staticmethod
    def of(folder: str, name: str) -> Picture:
        """A file as it is now. Raises an OSError."""
        status = os.stat(Path(folder, name))
        return Picture(folder, name, status.st_size, status.st_mtime_ns)


def write_index(directory: Path, encoder: NamedEncoder) -> None:
    """Write ``index.json``, which encoder made the tokens of an index's pictures; raises an OSError."""
    write_json(directory / INDEX, {"format": _FORMAT, "encoder": asdict(encoder)})


def encoder_of_index(directory: Path) -> NamedEncoder:
    """Encoder that made the tokens of an index's pictures.

    Raises:
        OSError: the directory holds no index, or it cannot be read. ValueError: it is malformed; names the file.
    """
    path = directory / INDEX
    contents = read_json_object(path)
    if contents.get("format") != _FORMAT or "encoder" not in contents:
        raise ValueError(f"{path}: not an index of this version; make it again")
    return NamedEncoder.of_json(contents["encoder"], f"{path}: 'encoder'")


def has_model(directory: Path) -> bool:
    """Whether an index has a model, not an encoder of late interaction alone."""
    return (directory / MODEL_DIRECTORY).is_dir()


def is_index(directory: Path) -> bool:
    """Whether a directory holds an index of pictures."""
    return (directory / INDEX).is_file()


def read_pictures(shard: Path) -> list[Picture]:
    """Files of a shard's items, in their order.

    Raises:
        OSError: it cannot be read. ValueError: it is malformed; names the file and the item.
    """
    path = shard / PICTURES
    entries = read_json_object(path).get("pictures")
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected an object of pictures, a list")
    return [_picture(entry, f"{path}: picture {number}") for number, entry in enumerate(entries)]


def write_pictures(shard: Path, pictures: list[Picture]) -> None:
    """Write what ``read_pictures`` reads; raises an OSError."""
    write_json(shard / PICTURES, {"pictures": [asdict(picture) for picture in pictures]})


def _picture(entry: Any, place: str) -> Picture:
    kinds = {"folder": str, "name": str, "size": int, "changed": int}
    if not isinstance(entry, dict) or entry.keys() != kinds.keys():
        raise ValueError(f"{place}: expected an object of {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(entry[name]) is not kind:
            raise ValueError(f"{place}: {name} must be {'a text' if kind is str else 'an integer'}")
    within = PurePosixPath(entry["name"])
    if within.is_absolute() or ".." in within.parts or "\0" in entry["name"] + entry["folder"]:
        raise ValueError(f"{place}: name must be a path within the folder, not {entry['name']!r}")
    return Picture(**entry)
