"""Images with their captions, as the readers of all kinds of files make them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from crossret.data.pictures import id_of
from crossret.data.precomputed import check_caption, is_name

FIELDS = {
    "image": (
        *("image", "image_name", "image_path", "img", "img_path"),
        *("file", "file_name", "filename", "filepath", "file_path", "image_id"),
    ),
    "caption": ("caption", "captions", "text", "comment", "sentence", "title"),
    "split": ("split",),
}
"""Names of fields of JSON objects and of columns of tables, the likeliest first."""

_COCO = re.compile("COCO_[a-z]+[0-9]{4}_0*([0-9]+)")


@dataclass(frozen=True)
class CaptionedImage:
    """An image's captions.

    Attributes:
        place: the file and the line, or the entry, that names the image first, for errors.
        id: its name in features: cocoid, MS-COCO's number in the name of the file, else its path without ending.
        file: the image's file as the file of captions says it; None where it names none.
        own_id: another name in the file of captions: cocoid, image_id, imgid, which VSE++ lists.
        split: the file's own.
        captions: in the file's order, white space as single spaces.
        caption_ids: their numbers in the file, up to the first caption that has none.
    """

    place: str
    id: str
    file: str | None = None
    own_id: str | None = None
    split: str | None = None
    captions: list[str] = field(default_factory=list)
    caption_ids: list[str] = field(default_factory=list)

    def add(self, caption: str, place: str, own_id: object = None) -> None:
        """Add a caption, read at this place; raises as ``check_caption``."""
        caption = " ".join(caption.split())
        check_caption(caption, place)
        if type(own_id) is int and len(self.caption_ids) == len(self.captions):
            self.caption_ids.append(str(own_id))
        self.captions.append(caption)

    def first(self, count: int | None) -> CaptionedImage:
        """The image with its first captions alone, or all; raises a ValueError that names it where it has fewer."""
        if count is not None and len(self.captions) < count:
            raise ValueError(f"{self.place}: {self.id} has {len(self.captions)} captions, fewer than {count}")
        return replace(self, captions=self.captions[:count], caption_ids=self.caption_ids[:count])


class Reading:
    """Content of a file, ``path``: ``images`` by id, in its order, and ``notes``, places by what is wrong there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.images: dict[str, CaptionedImage] = {}
        self.notes: defaultdict[str, list[str]] = defaultdict(list)

    def image(
        self, place: str, file: Any, own_id: Any, split: Any, *, once: bool = False, number: Any = None
    ) -> CaptionedImage:
        """The image that an entry or a row names; where each is named ``once``, ``own_id`` is its id, if there is one,
        and ``number`` what lists call it where there is none.

        Raises:
            ValueError: nothing names it, another one has its id, or it was of another split; begins with the place.
        """
        own = str(own_id) if isinstance(own_id, (int, str)) else None
        file = file if isinstance(file, str) and PurePosixPath(file).name else None
        split = split if isinstance(split, str) and split else None
        of_coco = _COCO.fullmatch(PurePosixPath(file).stem) if file else None
        name = own if once and own else of_coco[1] if of_coco else id_of(file) if file else ""
        own = own or (str(number) if isinstance(number, int) else None)
        if not is_name(name):
            raise ValueError(f"{place}: neither an id nor the path of a file names the image")
        known = self.images.setdefault(name, CaptionedImage(place, name, file, own, split))
        if known.file != file or (once and known.place != place):
            raise ValueError(f"{place}: another image has the id {name}, too: {known.place}")
        if known.split != split:
            raise ValueError(f"{place}: image {name} is of split {split} here, of {known.split} in {known.place}")
        return known
