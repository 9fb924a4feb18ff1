"""Where the files of a directory of rendered scenes are; features, boxes and captions are in the precomputed format."""

from __future__ import annotations

import os
from pathlib import Path

from crossret.data.names import check_name
from crossret.data.precomputed import split_path

MANIFEST = "scenes.json"
MAX_IMAGES = 100_000  # a split: five digits number its pictures


def picture_path(directory: str | os.PathLike[str], split: str, index: int) -> Path:
    """Where the picture of a scene is."""
    check_name("split", split)
    return Path(directory) / "images" / split / f"{index:05d}.png"


def grounding_path(directory: str | os.PathLike[str], split: str) -> Path:
    """Where it is told which object every noun names: one JSON object a caption."""
    return split_path(directory, split, "_grounding.jsonl")
