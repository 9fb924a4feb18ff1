"""The one reader of files of captions, which goes by what is in a file and not by its name."""

from __future__ import annotations

import os
from typing import NamedTuple

from crossret.captions.documents import read_document, read_json_lines
from crossret.captions.images import CaptionedImage, Reading
from crossret.captions.tables import read_table
from crossret.files.lines import read_lines


class CaptionsFile(NamedTuple):
    """Images that have captions, in the file's order; mistakes that were read all the same, in a line a kind."""

    images: list[CaptionedImage]
    notes: list[str]


def read_captions_file(path: str | os.PathLike[str]) -> CaptionsFile:
    """Read the captions of a file of any kind.

    Kinds: Karpathy's ``dataset_*.json``; MS-COCO's annotations ``captions_*.json``; JSON lists of ``image`` and
    ``caption`` (LAVIS, BLIP), JSON objects of captions by file, JSON lines; tables with a header or without, between
    whose columns is a tab, ``|``, ``,`` or ``;``, quoted or not: CSV, TSV, and Flickr's ``.token``.

    Args:
        path: the file, UTF-8, with or without a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is of no such kind, or a row or an entry is malformed; names it and what is expected.
    """
    found, lines = Reading(path), read_lines(path) or [""]
    text = "\n".join(lines)
    if not text.lstrip().startswith(("{", "[")):
        read_table(lines, found)
    elif len(lines) > 1 and lines[0].startswith("{") and lines[0].rstrip().endswith("}"):
        read_json_lines(lines, found)
    else:
        read_document(text, found)
    images = [image for image in found.images.values() if image.captions]
    if not images:
        raise ValueError(f"{found.path}: no captions")
    for image in found.images.values():
        if not image.captions:
            found.notes["the image has no captions, and is left out"].append(image.place)
    notes = [f"{places[0]}: {what}; there are {len(places):,} such" for what, places in found.notes.items()]
    return CaptionsFile(images, notes)
