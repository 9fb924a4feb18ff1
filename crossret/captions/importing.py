"""Captions of a file written as splits of a data directory, beside their images' features."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path, PurePosixPath

from crossret.captions.images import CaptionedImage
from crossret.captions.reading import read_captions_file
from crossret.data.names import check_name
from crossret.data.owners import write_owners
from crossret.data.pictures import id_of
from crossret.data.precomputed import caption_ids_path, captions_path, ids_path, owners_path, read_image_ids, words_path
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied

SPLITS = {"train": "train", "restval": "train", "val": "dev", "validation": "dev", "dev": "dev", "test": "test"}
"""Splits of a data directory by their names in files: MS-COCO trains on restval, too, and others call dev val."""


def import_captions(
    path: Path,
    directory: str | os.PathLike[str],
    splits: Mapping[str, str] = SPLITS,
    *,
    split: str | None = None,
    listed: Path | None = None,
    per_image: int | None = None,
) -> tuple[dict[str, list[int]], list[str]]:
    """Write ``{split}_caps.txt``, ``_ids.txt`` and as far as needed ``_caption_ids.txt`` and ``_image_of_caption.npy``.

    Where ``{split}_ids.txt`` is there, as ``import-features`` leaves it, captions are in its order, so that they are
    beside their images' features; where it names images once a caption, captions are written once an image. Else images
    are in the file's order, or the list's, and ``import-features`` follows it.

    Args:
        path, directory: of the captions, as ``read_captions_file``; the data directory, made if needed.
        splits: splits of the data directory by their names in the file; images of others are left out.
        split: the split of all images, or of those of the list, whatever the file says.
        listed: images of ``split``, in order: an id or a file a line, or VSE∞'s numbers beside ``id_mapping.json``.
        per_image: the first so many captions of each; None takes all.

    Returns:
        Numbers of captions of each image, by split; what the file's reader notes and what is left out, in lines.

    Raises:
        FileExistsError: a split has captions already. OSError, ValueError: as ``read_captions_file``; a split has no
            name or no images; an image has no captions where it is listed, or fewer than ``per_image``.
    """
    for name in splits.values() if split is None else [split]:
        check_name("split", name)
    found = read_captions_file(path)
    parts: dict[str, list[CaptionedImage]] = {}
    left_out: Counter[str] = Counter()
    for image in found.images if listed is None else _named(read_image_ids(listed), listed, found.images, path):
        own = splits.get(image.split or "") if split is None else split
        if own is None:
            left_out[f"split {image.split}" if image.split else "no split"] += 1
        else:
            parts.setdefault(own, []).append(image)
    others = [f"left out: {count:,} images of {own}" for own, count in left_out.items()]
    if listed is not None:
        others += _left_out(len(found.images) - sum(map(len, parts.values())) - left_out.total(), listed)
    if not parts and split is None:
        raise ValueError(f"{path}: no images of {', '.join(splits)}; {'; '.join(others)}; --split NAME takes all")
    if not parts:
        raise ValueError(f"{listed}: names no images")
    counts: dict[str, list[int]] = {}
    lines: dict[Path, list[str]] = {}
    with occupied(directory):
        for name, part in parts.items():
            captions_file, own_ids_file = captions_path(directory, name), caption_ids_path(directory, name)
            of_captions = (place(directory, name) for place in (owners_path, words_path))
            for output in (captions_file, own_ids_file, *of_captions):
                if output.exists():
                    raise FileExistsError(f"{output}: is there already; choose another directory")
            images = [image.first(per_image) for image in part]
            if (ids_file := ids_path(directory, name)).exists():
                names = read_image_ids(ids_file)
                images = _named(names, ids_file, images, path, again=True)
                runs = [len(list(run)) for _, run in groupby(names)]
                if runs not in ([1] * len(images), [len(image.captions) for image in images]):
                    raise ValueError(
                        f"{ids_file}: its {len(names):,} lines must name each image once, or once a caption"
                    )
                others += _left_out(len(part) - len({image.id for image in images}), ids_file)
            else:
                lines[ids_file] = [image.id for image in images]
            counts[name] = [len(image.captions) for image in images]
            lines[captions_file] = [caption for image in images for caption in image.captions]
            if counts[name] == [len(image.caption_ids) for image in images]:
                lines[own_ids_file] = [own for image in images for own in image.caption_ids]
        with ExitStack() as written:
            for output, texts in lines.items():
                with atomic_write(output) as file:
                    file.write("".join(f"{text}\n" for text in texts).encode())
                written.callback(output.unlink)
            for name in parts:
                written.callback(owners_path(directory, name).unlink, missing_ok=True)
                write_owners(owners_path(directory, name), counts[name])
            written.pop_all()  # all are there
    return counts, found.notes + others


def _left_out(count: int, names: Path) -> list[str]:
    return [f"left out: {count:,} images that {names} does not name"] * (count > 0)


def _named(
    names: Sequence[str], listed: Path, images: Sequence[CaptionedImage], path: Path, *, again: bool = False
) -> list[CaptionedImage]:
    """The images of names: ids, files, their names with or without ending, own ids. Lines in succession are of one
    image; whether it may come ``again`` behind others.
    """
    by_id = {image.id: image for image in images}
    by_others: dict[str | None, list[CaptionedImage]] = {}
    for image in images:
        file = PurePosixPath(image.file or image.id)
        for other in {image.file, id_of(str(file)), file.name, file.stem, image.own_id}:
            by_others.setdefault(other, []).append(image)
    found: list[CaptionedImage] = []
    seen: set[str] = set()
    for name, _ in groupby(names):
        own = [by_id[name]] if name in by_id else by_others.get(name, [])
        if len(own) != 1 or (own[0].id in seen and not again):
            why = "is named twice" if len(own) == 1 else f"is one of {len(own)} in {path}"
            raise ValueError(f"{listed}: image {name} {why if own else f'has no captions in {path}'}")
        found.append(own[0])
        seen.add(own[0].id)
    return found
