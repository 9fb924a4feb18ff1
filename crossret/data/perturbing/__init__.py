"""A copy of a data directory in which the captions of one split are perturbed, to train on (OAN §3, Table 1)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from crossret.data.directories import link_file, link_split, list_splits
from crossret.data.perturbing.words import drop_words, join_words, shuffle_words
from crossret.data.precomputed import OF_CAPTIONS, OF_IMAGES, PrecomputedDataset, captions_path, shows_nothing
from crossret.data.scenes.grounding import read_grounding
from crossret.data.scenes.layout import grounding_path, picture_path
from crossret.data.tagging import DEFAULT_MODEL, load_tagger
from crossret.data.vocabulary import tokenize
from crossret.files.atomic import atomic_write
from crossret.files.directories import new_directory
from crossret.progress import Progress

RECORD = "perturbation.json"


@dataclass(frozen=True)
class Perturbed:
    """Counts of a split's captions, perturbed and not.

    Attributes:
        captions: how many there are.
        changed: how many have fewer words, or the same in another order.
        kept: how many stayed because nothing of them would have been left.
    """

    captions: int
    changed: int
    kept: int


def perturb_data(
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    drop: str | None = None,
    split: str = "train",
    seed: int = 0,
    tagger: str | None = None,
    progress: Progress | None = None,
) -> Perturbed:
    """Write ``output`` as ``data`` with the captions of one split perturbed; it is there when it is complete.

    Features, boxes, pictures, and the captions, tokens and groundings of other splits are links to the files of
    ``data``, or copies where there can be no links. Tokens and grounding of the perturbed split, whose words are other
    ones now, stay behind, and so does ``scenes.json``: these are no scenes to render again. ``perturbation.json`` tells
    what was done.

    A changed caption is written as its words, in lower case and with spaces between them; another one as it was. The
    new words depend on ``seed`` and the caption's number alone.

    Args:
        data: a directory in the precomputed-feature format.
        output: a new or an empty directory, not inside ``data``.
        drop: the part of speech to leave out, a key of ``PARTS_OF_SPEECH``; None shuffles the words instead.
        split: whose captions.
        seed: of the shuffling, not negative.
        tagger: the spaCy model that tells parts of speech; None takes what rendered scenes know of their words, and
            "en_core_web_sm" for other captions.
        progress: called with (captions done, all of them).

    Raises:
        OSError: a file is missing or cannot be written; FileExistsError where ``output`` is a file or not empty.
        ValueError: ``output`` is ``data`` or inside it, a file of ``data`` is malformed, there is no such part of
            speech, or spaCy or its model is missing (says what to install).
    """
    source = Path(data)
    with new_directory(output, source) as directory:
        captions = PrecomputedDataset(source, split).captions
        tokens = [tokenize(caption) for caption in captions]
        tagged_by = None
        if drop is None:
            words = (shuffle_words(old, np.random.default_rng([seed, number])) for number, old in enumerate(tokens))
        else:
            tags, tagged_by = _tags(source, split, tokens, tagger)
            words = (drop_words(old, part, drop) for old, part in zip(tokens, tags, strict=True))
        changed = kept = 0
        lines = []
        for caption, old, new in zip(captions, tokens, words, strict=True):
            line = join_words(new)
            if shows_nothing(line):
                kept += 1
                line = caption
            elif new == old:
                line = caption
            else:
                changed += 1
            lines.append(line)
            if progress is not None:
                progress(len(lines), len(captions))
        result = Perturbed(len(captions), changed, kept)
        record = {"split": split, "drop": drop, "tags": tagged_by, "seed": seed if drop is None else None}
        for name in list_splits(source):
            _link_split(source, directory, name, with_words=name != split)
        with atomic_write(captions_path(directory, split)) as file:
            file.write("".join(line + "\n" for line in lines).encode())
        with atomic_write(directory / RECORD) as file:
            file.write(json.dumps({**record, **asdict(result)}, indent=2).encode() + b"\n")
    return result


def _tags(source: Path, split: str, tokens: list[list[str]], model: str | None) -> tuple[Iterable[list[str]], str]:
    """The tags of a split's tokenized captions, and who tells them."""
    path = grounding_path(source, split)
    if model is None and path.exists():
        grounding = read_grounding(path)
        if [entry.words for entry in grounding] != tokens:
            raise ValueError(f"{path}: not the words of {captions_path(source, split).name}")
        tags = [entry.pos for entry in grounding if entry.pos is not None]
        if len(tags) == len(grounding):  # scenes rendered by an earlier version have none
            return tags, path.name
    model = model or DEFAULT_MODEL
    return load_tagger(model)(tokens), model


def _link_split(source: Path, directory: Path, split: str, *, with_words: bool) -> None:
    """All of a split that there is, or all but its captions and what is told of their words."""
    link_split(source, directory, split, [*OF_IMAGES, *(OF_CAPTIONS if with_words else OF_CAPTIONS[2:])])
    if with_words and grounding_path(source, split).exists():
        link_file(grounding_path(source, split), grounding_path(directory, split))
    pictures, copies = (picture_path(root, split, 0).parent for root in (source, directory))
    if pictures.is_dir():
        copies.mkdir(parents=True)
        for picture in pictures.iterdir():
            if picture.is_file():
                link_file(picture, copies / picture.name)
