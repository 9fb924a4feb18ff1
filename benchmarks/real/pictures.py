"""Pictures with a sentence each, and splits of them that share no near-doubles."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from crossret.data.pictures import read_picture
from crossret.extraction import PictureEncoder

_ALIKE = 0.95  # cosine of two pictures' mean features above which they are near-doubles
_SYMBOLS = ("symbols/", "town/roadsigns/")
_NO_DRAWINGS = ("shapes/", "computer/icons/", "unsorted/duplicates/", "buttons/", "logos/")
_MOST_PIXELS = 2**22  # 18 drawings of 6,842 have more, and three quarters of all pixels
_MOST_OF_A_TITLE = 2  # pictures: more have the title of a collection


class Captioned(NamedTuple):
    """A picture's file and its sentence."""

    file: Path
    caption: str


def stamps(package: Path) -> list[Captioned]:
    """Tux Paint's stamps, photographs and drawings, each with a sentence, but for letters, numbers, coins and signs."""
    root, found = package / "usr/share/tuxpaint/stamps", []
    for file in sorted(root.rglob("*.png")):
        text = file.with_suffix(".txt")
        if text.exists() and not file.relative_to(root).as_posix().startswith(_SYMBOLS):
            found.append(Captioned(file, text.read_text(errors="replace").splitlines()[0].strip()))
    return found


def clip_art(package: Path) -> list[Captioned]:
    """Open Clip Art's drawings by the titles in their files, without numbers; no shapes, no icons, no collections."""
    root, titled = package / "usr/share/openclipart/png", []
    for file in sorted(root.rglob("*.png")):
        if file.is_symlink() or file.relative_to(root).as_posix().startswith(_NO_DRAWINGS):
            continue
        try:
            with Image.open(file) as picture:
                title, pixels = str(picture.info.get("Title", "")), picture.width * picture.height
        except Image.DecompressionBombError:
            continue
        if pixels > _MOST_PIXELS:
            continue
        title = " ".join(re.sub(r"[\d_#-]+", " ", title).split())
        if re.search("[A-Za-z]{3}", title) and not re.match("clipart by|part of", title, re.IGNORECASE):
            titled.append(Captioned(file, title))
    counts = Counter(own.caption.lower() for own in titled)
    return [own for own in titled if counts[own.caption.lower()] <= _MOST_OF_A_TITLE]


COLLECTIONS = {"stamps": ("tuxpaint-stamps-default", stamps, 100), "clip art": ("openclipart-png", clip_art, 500)}
"""Their package, how it is read, and how many pictures are to test."""


def splits_of(pictures: Sequence[Captioned], encoder: PictureEncoder, test: int) -> dict[str, list[Captioned]]:
    """Splits by clusters of near-doubles, pictures that are alike or have the same sentence: of those in dev, half as
    many as in test, and in test only the first is taken, and all the others are to train on.
    """
    clusters = _clusters(pictures, _means(pictures, encoder))
    random.Random(0).shuffle(clusters)
    held = {"test": clusters[:test], "dev": clusters[test : test + test // 2]}
    splits = {split: [pictures[own[0]] for own in part] for split, part in held.items()}
    splits["train"] = [pictures[number] for own in clusters[test + test // 2 :] for number in own]
    return splits


def _means(pictures: Sequence[Captioned], encoder: PictureEncoder, batch: int = 32) -> Tensor:
    """(n, D): the mean of each picture's tokens, of unit norm."""
    means = []
    with torch.inference_mode():
        for first, last in pairwise([*range(0, len(pictures), batch), len(pictures)]):
            tokens = encoder.encode_images([read_picture(own.file) for own in pictures[first:last]])
            means += [values.mean(0) for values in tokens.values.split(tokens.lengths)]
    return torch.nn.functional.normalize(torch.stack(means), dim=1)


def _clusters(pictures: Sequence[Captioned], means: Tensor) -> list[list[int]]:
    """Numbers of pictures, together where a chain of near-doubles leads from one to the other."""
    near = [set(row.nonzero().flatten().tolist()) for row in means @ means.T > _ALIKE]
    named: dict[str, list[int]] = defaultdict(list)
    for number, own in enumerate(pictures):
        named[own.caption.lower().strip(" .")].append(number)
    for numbers in named.values():
        for number in numbers:
            near[number] |= set(numbers)
    return list(_connected(near))


def _connected(near: Sequence[set[int]]) -> Iterator[list[int]]:
    seen: set[int] = set()
    for start in range(len(near)):
        waiting, found = [start], set()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                found.add(number)
                waiting += near[number]
        if found:
            yield sorted(found)
