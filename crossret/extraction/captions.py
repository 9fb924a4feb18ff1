"""Files of captions that name their pictures: lines of file<TAB>caption, or JSON lines."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass, field

from crossret.data.precomputed import check_caption
from crossret.files.json import parse_json_object
from crossret.files.regular import LARGEST_LINES, read_regular
from crossret.files.unicode import escaped

_NUMBERED = re.compile(r"#[0-9]+$")


@dataclass(frozen=True)
class Captioned:
    """A picture's captions.

    Attributes:
        place: the file and the line that names the picture first, for errors.
        captions: in the file's order.
    """

    place: str
    captions: list[str] = field(default_factory=list)


def read_captions_of_pictures(path: str | os.PathLike[str], per_picture: int | None = None) -> dict[str, Captioned]:
    """Read captions by the names of their pictures' files, in the order in which these are named first.

    A line is ``file<TAB>caption``, and ``file#0<TAB>caption`` as Flickr's, or a JSON object ``{"image": file,
    "caption": text}``. A picture has one line or several; white space in a caption becomes single spaces.

    Args:
        path: the file, UTF-8.
        per_picture: take the first so many of each; None takes all.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, or a caption (see ``check_caption``); a picture has fewer captions than
            ``per_picture``; there is none. Names file and line.
    """
    if per_picture is not None and per_picture < 1:
        raise ValueError(f"captions of a picture must be at least 1, not {per_picture}")
    found: dict[str, Captioned] = {}
    text = read_regular(path, LARGEST_LINES).removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), start=1):
        place = f"{os.fspath(path)}, line {number}"
        try:
            name, caption = _parsed(line.decode().rstrip("\r"), place)
        except UnicodeDecodeError as error:
            raise ValueError(f"{place}: not UTF-8 ({error.reason} at byte {error.start})") from error
        caption = " ".join(caption.split())
        check_caption(caption, place)
        found.setdefault(name, Captioned(place)).captions.append(caption)
    for name, own in found.items():
        if per_picture is not None and len(own.captions) < per_picture:
            raise ValueError(f"{own.place}: {name} has {len(own.captions)} captions, fewer than {per_picture}")
    return {name: Captioned(own.place, own.captions[:per_picture]) for name, own in found.items()}


def _parsed(line: str, place: str) -> tuple[str, str]:
    """The picture's file and the caption of a line."""
    if line.startswith("{"):
        values = parse_json_object(line, place)
        name, caption = values.get("image"), values.get("caption")
        if not isinstance(name, str) or not isinstance(caption, str):
            raise ValueError(f'{place}: must have "image" and "caption", two texts')
        return name, caption
    name, tab, caption = line.partition("\t")
    if not tab or not name:
        raise ValueError(f"{place}: {escaped(line)!r} is not a picture's file, a tab and its caption")
    return _NUMBERED.sub("", name), caption
