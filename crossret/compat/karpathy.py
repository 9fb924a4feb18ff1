"""Captions of Karpathy's splits, `dataset_*.json` of Flickr8K, Flickr30K and MS-COCO, as splits of a data directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossret.data.names import check_name
from crossret.data.owners import PUBLISHED_CAPTIONS
from crossret.data.precomputed import (
    caption_ids_path,
    captions_path,
    check_caption,
    ids_path,
    read_ids,
)
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.files.json import parse_json_object
from crossret.files.regular import LARGEST_LINES, read_regular

SPLITS = {"train": "train", "restval": "train", "val": "dev", "test": "test"}
"""By the file's name of a split that of the data directory: MS-COCO trains on restval, too, and others call val dev."""


@dataclass
class CaptionedSplit:
    """What the file says of a split.

    Attributes:
        captions: by image id the captions of an image, five each.
        caption_ids: likewise what the file calls them, its 'sentid'; MS-COCO's are those of annotations. None where one
            has none.
        cut: how many images have more of them, of which the first five are there.
    """

    captions: dict[str, list[str]] = field(default_factory=dict)
    caption_ids: dict[str, list[str]] | None = field(default_factory=dict)
    cut: int = 0


def read_karpathy(path: Path, splits: Mapping[str, str] = SPLITS) -> dict[str, CaptionedSplit]:
    """The captions of such a file by split, images in its order.

    An image's id is the one by which features name it: MS-COCO's own, of others the number, or name, of its file.

    Args:
        path: the file.
        splits: by the file's name of a split, what it becomes; others are left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, two images have one id, or an image fewer than five captions or one that is
            none; names the image.
    """
    contents = parse_json_object(read_regular(path, LARGEST_LINES), path)
    images = contents.get("images")
    if not isinstance(images, list):
        raise ValueError(f"{path}: not a dataset of captions: no list of 'images'")
    found = {name: CaptionedSplit() for name in dict.fromkeys(splits.values())}
    for number, image in enumerate(images):
        place = f"{path}: images[{number}]"
        name, captions, ids, split = _read_image(image, place)
        if split not in splits:
            continue
        part = found[splits[split]]
        if name in part.captions:
            raise ValueError(f"{place}: another image has the id {name}, too")
        if len(captions) < PUBLISHED_CAPTIONS:
            raise ValueError(f"{place}, {name}: has {len(captions)} captions, fewer than {PUBLISHED_CAPTIONS}")
        part.captions[name] = captions[:PUBLISHED_CAPTIONS]
        if part.caption_ids is not None and ids is not None:
            part.caption_ids[name] = ids[:PUBLISHED_CAPTIONS]
        else:
            part.caption_ids = None
        part.cut += len(captions) > PUBLISHED_CAPTIONS
    return {name: part for name, part in found.items() if part.captions}


def import_captions(
    path: Path, directory: str | os.PathLike[str], splits: Mapping[str, str] = SPLITS
) -> dict[str, CaptionedSplit]:
    """Write ``{split}_caps.txt``, ``{split}_ids.txt`` and ``{split}_caption_ids.txt`` of the splits of such a file.

    Where ``{split}_ids.txt`` is there, as ``import-features`` leaves it, captions are in its order, so that they are
    beside their images' features; else images are in the file's, and ``import-features`` follows it. Where every image
    is named five times in succession there, as published data name it once a caption, its captions are written once.

    Args:
        path, splits: as ``read_karpathy``.
        directory: the data directory, made if needed.

    Returns:
        What was written, by split.

    Raises:
        FileExistsError: a split has captions already. OSError, ValueError: as ``read_karpathy``, ``read_ids``, a split
            has no name, or an image of ``{split}_ids.txt`` no captions.
    """
    for split in splits.values():
        check_name("split", split)
    found = read_karpathy(path, splits)
    if not found:
        raise ValueError(f"{path}: no images of {', '.join(splits)}")
    with occupied(directory):
        ordered: dict[Path, list[str]] = {}
        for split, part in found.items():
            captions_file, ids_file = captions_path(directory, split), ids_path(directory, split)
            names_file = caption_ids_path(directory, split)
            for path_there in (captions_file, names_file):
                if path_there.exists():
                    raise FileExistsError(f"{path_there}: is there already; choose another directory")
            ids = read_ids(ids_file) if ids_file.exists() else list(part.captions)
            once = ids[::PUBLISHED_CAPTIONS]
            if ids == [
                name for name in once for _ in range(PUBLISHED_CAPTIONS)
            ]:  # a line a caption, and so are features
                ids = once
            absent = next((name for name in ids if name not in part.captions), None)
            if absent is not None:
                raise ValueError(f"{ids_file}: image {absent} has no captions in {path}")
            if not ids_file.exists():
                ordered[ids_file] = ids
            ordered[captions_file] = [caption for name in ids for caption in part.captions[name]]
            if part.caption_ids is not None:
                ordered[names_file] = [own for name in ids for own in part.caption_ids[name]]
        with ExitStack() as written:
            for file_path, lines in ordered.items():
                with atomic_write(file_path) as file:
                    file.write("".join(f"{line}\n" for line in lines).encode())
                written.callback(file_path.unlink)
            written.pop_all()  # all are there
    return found


def _read_image(image: Any, place: str) -> tuple[str, list[str], list[str] | None, Any]:
    """(id, captions, their ids, split) of an image."""
    if not isinstance(image, dict) or not isinstance(image.get("sentences"), list):
        raise ValueError(f"{place}: not an image with 'sentences'")
    own, filename = image.get("cocoid"), image.get("filename")
    if type(own) is not int and not isinstance(filename, str):
        raise ValueError(f"{place}: neither 'cocoid' nor 'filename' names the image")
    name = str(own) if type(own) is int else Path(str(filename)).stem
    if name.split() != [name]:
        raise ValueError(f"{place}: {name!r} is no id, which has no white space")
    captions = []
    for number, sentence in enumerate(image["sentences"]):
        raw = sentence.get("raw") if isinstance(sentence, dict) else None
        if not isinstance(raw, str):
            raise ValueError(f"{place}, {name}: sentences[{number}] has no text 'raw'")
        captions.append(" ".join(raw.split()))
        check_caption(captions[-1], f"{place}, {name}: sentences[{number}]")
    ids = [sentence.get("sentid") for sentence in image["sentences"]]
    named = all(type(own) is int and own >= 0 for own in ids)
    return name, captions, [str(own) for own in ids] if named else None, image.get("split")
