"""What an extraction encodes: the pictures of a folder, in order, and the captions of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from crossret.data.owners import alike, read_owners
from crossret.data.pictures import find_pictures, id_of, pictures_below
from crossret.data.precomputed import captions_path, ids_path, is_name, owners_path, read_captions, read_ids
from crossret.extraction.captions import Captioned
from crossret.files.unicode import escaped


@dataclass(frozen=True)
class Source:
    """What is to be encoded.

    Attributes:
        folder: of the pictures.
        files: the pictures, in it or in folders inside it.
        captions: of each; None where there are none, or where they are not asked for.
        named: whether the split's ids, which were there, name the pictures.
        without: how many pictures of the folder are left out for want of captions.
        others: files in the folder that are no pictures: their paths within it, with "/".
    """

    folder: Path
    files: list[Path]
    captions: list[list[str]] | None
    named: bool
    without: int
    others: list[str]

    @property
    def names(self) -> list[str]:
        """The pictures' paths within the folder, with "/"."""
        return [path.relative_to(self.folder).as_posix() for path in self.files]

    @property
    def ids(self) -> list[str]:
        """The pictures' ids: their names without endings."""
        return [id_of(name) for name in self.names]

    def captions_of(self, places: Iterable[int]) -> list[str]:
        return [] if self.captions is None else [caption for place in places for caption in self.captions[place]]


def find_source(
    folder: Path,
    captions: Mapping[str, Captioned] | None,
    directory: str | os.PathLike[str],
    split: str,
    *,
    named: bool,
    with_captions: bool,
    skip: bool,
) -> Source:
    """The pictures and their captions.

    Args:
        folder: of the pictures, those in folders inside it included.
        captions: as ``read_captions_of_pictures`` has them; None takes what is in the data directory.
        directory, split: the split's files.
        named: whether its ids are there to name the pictures.
        with_captions: whether its captions are asked for.
        skip: whether pictures may turn out to be left out.

    Raises:
        ValueError: as ``extract_pictures``.
    """
    names, others = pictures_below(folder)
    if captions is not None:
        there = set(names)
        for name, own in captions.items():
            if name not in there:
                why = f"{name!r} is no picture" if name in others else f"there is no picture {name!r}"
                raise ValueError(f"{own.place}: {why} in {folder}")
        _check_ids(folder, captions)
        chosen = [folder / name for name in captions]
        given = [own.captions for own in captions.values()]
        return Source(folder, chosen, given, False, len(names) - len(chosen), others)
    every = [folder / name for name in names]
    ids_file, captions_file = ids_path(directory, split), captions_path(directory, split)
    for file in (ids_file, captions_file):
        if skip and (named if file == ids_file else file.exists()):
            raise ValueError(f"{file}: is of all pictures, of which none can then be left out as unreadable")
    if named:
        every = find_pictures(folder, read_ids(ids_file))
    else:
        _check_ids(folder, names)
    if not with_captions:
        return Source(folder, every, None, named, 0, others)
    if not captions_file.exists():
        raise ValueError(f"an encoder of texts needs captions: a file of them, or {captions_file}")
    lines = read_captions(captions_file)
    owners_file = owners_path(directory, split)
    if owners_file.exists():
        owners = read_owners(owners_file, len(every), len(lines))
    elif len(lines) % len(every):
        raise ValueError(
            f"{captions_file}: {len(lines):,} captions of {len(every):,} pictures: there must be as many of each, or "
            f"{owners_file.name}, which tells the picture of each"
        )
    else:
        owners = alike(len(every), len(lines))
    bounds = np.searchsorted(owners, np.arange(len(every) + 1)).tolist()
    return Source(folder, every, [lines[first:last] for first, last in pairwise(bounds)], named, 0, others)


def _check_ids(folder: Path, names: Iterable[str]) -> None:
    """Raise a ValueError that names the first picture whose name cannot be its id."""
    found: dict[str, str] = {}
    for name in names:
        own = id_of(name)
        if not is_name(own):
            raise ValueError(
                f"{escaped(str(folder / name))}: the name of a picture becomes its id, which has no control characters "
                "and no white space at an end: rename it"
            )
        if own in found:
            raise ValueError(f"{folder / name}: has the same id as {found[own]}, {own}: rename one")
        found[own] = name
