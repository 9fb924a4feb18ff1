"""Sources of an extraction: the pictures of a folder, in order, and the captions of each."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np

from crossret.captions.images import CaptionedImage
from crossret.captions.importing import SPLITS
from crossret.captions.reading import read_captions_file
from crossret.data.owners import alike, read_owners
from crossret.data.pictures import find_pictures, id_of, pictures_below
from crossret.data.precomputed import captions_path, ids_path, is_name, owners_path, read_captions, read_ids
from crossret.files.unicode import escaped


@dataclass(frozen=True)
class Source:
    """Pictures and captions to be encoded.

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


def read_captions_of_pictures(
    path: str | os.PathLike[str], per_picture: int | None = None, split: str | None = None
) -> dict[str, CaptionedImage]:
    """Read captions by the names of their pictures' files, in the order in which these are named first.

    Notes of ``read_captions_file`` are told by warnings.

    Args:
        path: as ``read_captions_file``.
        per_picture: take the first so many of each; None takes all.
        split: where the file tells splits, take this one, as the file calls it or as a data directory does, "dev" for
            "val"; None takes all.

    Raises:
        OSError, ValueError: as ``read_captions_file``; ``per_picture`` is less than 1, or a picture has fewer captions;
            a picture has no file of its own; there is no such split.
    """
    if per_picture is not None and per_picture < 1:
        raise ValueError(f"captions of a picture must be at least 1, not {per_picture}")
    images, notes = read_captions_file(path)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    told = {image.split: None for image in images if image.split is not None}
    if split is not None and told:
        images = [image for image in images if image.split and split in (image.split, SPLITS.get(image.split))]
        if not images:
            raise ValueError(f"{os.fspath(path)}: no images of split {split}, but of {', '.join(told)}")
    found: dict[str, CaptionedImage] = {}
    for image in images:
        if image.file is None or image.file in found:
            raise ValueError(f"{image.place}: image {image.id} has no file of its own, by which its picture is found")
        found[image.file] = image.first(per_picture)
    return found


def find_source(
    folder: Path,
    captions: Mapping[str, CaptionedImage] | None,
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
        captions = _by_pictures(captions, names)
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


def _by_pictures(captions: Mapping[str, CaptionedImage], names: list[str]) -> dict[str, CaptionedImage]:
    """Captions by names of pictures: a file's path may have other folders before it than that of one picture alone.

    Raises:
        ValueError: two files are one picture; names the place.
    """
    named: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        named[PurePosixPath(name).name].append(name)
    found: dict[str, CaptionedImage] = {}
    for file, own in captions.items():
        namesakes = named[PurePosixPath(file).name]
        ends = [name for name in namesakes if f"/{file}".endswith(f"/{name}") or f"/{name}".endswith(f"/{file}")]
        name = ends[0] if len(ends) == 1 else file
        if name in found:
            raise ValueError(f"{own.place}: {file!r} is the picture {name!r}, as is {found[name].file!r}")
        found[name] = own
    return found


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
