"""Grounding of captions in rendered scenes: the part of speech of every word, and the boxes that nouns name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.files.json import parse_json_object
from crossret.files.regular import LARGEST_LINES, read_regular


@dataclass(frozen=True)
class Grounding:
    """Truth about one caption.

    Attributes:
        words: the tokenized caption.
        objects: the boxes (4,) of the objects that some words name, by the word's place.
        pos: the Universal POS tag of each word; None in scenes rendered before tags were told.
    """

    words: list[str]
    objects: dict[int, NDArray[np.float32]]
    pos: list[str] | None = None


def read_grounding(path: Path) -> list[Grounding]:
    """Read what ``render_scenes`` knows of the captions of a split, an entry a caption.

    Raises:
        OSError: the file is missing or unreadable.
        ValueError: a line is malformed; names the file and the line.
    """
    entries = []
    for number, line in enumerate(read_regular(path, LARGEST_LINES).splitlines(), start=1):
        place = f"{path}, line {number}"
        entry = parse_json_object(line, place)
        try:
            words, objects = entry["words"], dict(entry["named"])
            boxes = {word: np.array(box, np.float32).reshape(4) for word, box in objects.items()}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{place}: not the grounding of a caption ({error})") from error
        if type(words) is not list or not all(type(word) is str for word in words):
            raise ValueError(f"{place}: 'words' is not a list of words")
        if not all(type(word) is int and 0 <= word < len(words) for word in boxes):
            raise ValueError(f"{place}: 'named' has a place outside the {len(words)} words")
        if not all(np.isfinite(box).all() for box in boxes.values()):
            raise ValueError(f"{place}: 'named' has a box that is not of finite numbers")
        pos = entry.get("pos")
        if pos is not None and not (
            type(pos) is list and len(pos) == len(words) and all(type(tag) is str for tag in pos)
        ):
            raise ValueError(f"{place}: 'pos' is not a list of tags, one for each of the {len(words)} words")
        entries.append(Grounding(words, boxes, pos))
    return entries
