"""Remains of an interrupted extraction, and whether another call is the same one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossret.data.precomputed import features_path
from crossret.extraction.parts import is_begun
from crossret.extraction.protocol import PictureEncoder, TextEncoder
from crossret.files.json import read_json_object, write_json
from crossret.files.lines import digest
from crossret.files.tensors import digest_of_tensors

PICTURES, WORDS = "pictures", "words"
"""The parts that are kept: of tokens and boxes of pictures, and of tokens of captions."""
NAMED = "ids are given"
_SETTINGS = "settings.json"


def part_path(directory: str | os.PathLike[str], split: str) -> Path:
    """Where what is done of a split is kept."""
    return features_path(directory, split).with_name(f".crossret-extract-{split}")


def ids_are_given(part: Path, ids_file: Path) -> bool:
    """Whether the split's ids were there before its extraction began, which may have written them."""
    if (part / _SETTINGS).exists():
        return bool(read_json_object(part / _SETTINGS).get(NAMED))
    return ids_file.exists()


def identity(encoder: PictureEncoder[Any] | TextEncoder) -> str:
    """Tells an encoder from all whose tokens are others."""
    return digest([digest_of_tensors(encoder.module.state_dict()), json.dumps(encoder.settings(), sort_keys=True)])


@contextmanager
def resumable(part: Path, settings: dict[str, Any], directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keep in ``part`` what is done in the block, and what that is made of; nothing where nothing is done.

    Raises:
        ValueError: what is kept there already is made of something else; says of what.
    """
    if part.exists() and not is_begun(part / PICTURES):
        shutil.rmtree(part)
    if part.exists():
        before = read_json_object(part / _SETTINGS)
        for name in settings:
            if before.get(name) != settings[name]:
                raise ValueError(
                    f"{os.fspath(directory)}: an extraction with another {name} was interrupted here: repeat that one, "
                    f"or remove {part}"
                )
    else:
        part.mkdir()
        write_json(part / _SETTINGS, settings)
    try:
        yield
    except BaseException:
        if not is_begun(part / PICTURES):
            shutil.rmtree(part)
        raise
