"""The precomputed-feature format: region features, perhaps their boxes, and a file of captions a split."""

from __future__ import annotations

import copy
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.boxes import check_boxes
from crossret.data.named_encoder import NamedEncoder
from crossret.data.names import check_name
from crossret.data.owners import PUBLISHED_CAPTIONS, alike, read_owners
from crossret.data.vocabulary import tokenize
from crossret.files.arrays import map_array
from crossret.files.features import StoredItems, read_lengths
from crossret.files.json import parse_json_object, read_json_object
from crossret.files.lines import digest, read_lines
from crossret.files.regular import read_regular
from crossret.files.unicode import escaped, is_unicode
from crossret.hyperparameters import ModelConfig

LARGEST_IMAGE = 2**28  # bytes that the features of an image may have: 100 regions of 2,048 have 800 KB
_MOST_CHARACTERS = 2**16  # in a caption

_FEATURES, _BOXES, _LENGTHS = "_ims.npy", "_boxes.npy", "_lengths.npy"
_CAPTIONS, IDS, _CAPTION_IDS, _OWNERS = "_caps.txt", "_ids.txt", "_caption_ids.txt", "_image_of_caption.npy"
OF_IMAGES = (_FEATURES, _BOXES, _LENGTHS, IDS)
"""Endings of a split's files that its captions do not change."""
_PRECOMP = "precomp"
WORDS = "_words"
"""Ending of the directory that holds tokens of a split's captions."""
OF_CAPTIONS = (_CAPTIONS, WORDS, _CAPTION_IDS, _OWNERS)
"""Endings of files that a split's images do not change, those first that the captions' words decide."""
SPANS, CAPTIONS_READ, ENCODED_BY = "spans.npy", "captions.sha256", "encoder.json"
"""Files in it: the words that tokens are of, a digest of the captions, and the encoder that made the tokens."""
MAPPING = "id_mapping.json"
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp")  # others are known by what is in them


def split_path(directory: str | os.PathLike[str], split: str, ending: str) -> Path:
    """The file of a split whose name ends so, in ``precomp`` of a directory as VSE∞'s; raises as ``check_name``."""
    check_name("split", split)
    own, precomp = Path(directory), Path(directory, _PRECOMP)
    inside = precomp.is_dir() and not (own / f"{split}{_FEATURES}").exists()
    return (precomp if inside else own) / f"{split}{ending}"


features_path = partial(split_path, ending=_FEATURES)
boxes_path = partial(split_path, ending=_BOXES)
lengths_path = partial(split_path, ending=_LENGTHS)
captions_path = partial(split_path, ending=_CAPTIONS)
ids_path = partial(split_path, ending=IDS)
caption_ids_path = partial(split_path, ending=_CAPTION_IDS)
owners_path = partial(split_path, ending=_OWNERS)
words_path = partial(split_path, ending=WORDS)


def mapping_path(ids_file: Path) -> Path:
    """Where VSE∞ tells the files of the images by their names in SPLIT_ids.txt: beside that, or above ``precomp``."""
    place = ids_file.parent
    return (place.parent if place.name == _PRECOMP else place) / MAPPING


def read_ids(path: Path) -> list[str]:
    """The names of a split's images or captions, in order.

    Raises:
        OSError: the file cannot be read. ValueError: a line is no name (see ``is_name``); names it.
    """
    names = read_lines(path)
    for number, name in enumerate(names, start=1):
        if not is_name(name):
            raise ValueError(f"{path}, line {number}: {escaped(name)!r} is no name, which has white space at no end")
    return names


def is_name(text: str) -> bool:
    """Whether it can be a line that names an image: there is something, in one line, without white space at its ends
    and without control characters.
    """
    return text.strip().splitlines() == [text] and all(char.isprintable() or char.isspace() for char in text)


def read_image_ids(ids_file: Path) -> list[str]:
    """The names of a split's images, a line an image or a caption.

    Where there is VSE∞'s ``id_mapping.json``, names are those of files: MS-COCO's ids as they are, of Flickr30K the
    numbers of the files.

    Raises:
        OSError, ValueError: as ``read_ids``, and of that file; it has no file of an image.
    """
    names = read_ids(ids_file)
    if not (mapping_file := mapping_path(ids_file)).exists():
        return names
    files = parse_json_object(read_regular(mapping_file), mapping_file)
    found = []
    for number, name in enumerate(names, start=1):
        file = files.get(name)
        if not isinstance(file, str):
            raise ValueError(f"{ids_file}, line {number}: {mapping_file} names no file of image {name}")
        stem = Path(file).stem
        last = re.search(r"[0-9]+$", stem)  # COCO_val2014_000000391895 is image 391895
        found.append(name if last is not None and last[0].lstrip("0") == name else stem)
    return found


def splits_in(directory: str | os.PathLike[str]) -> list[str]:
    """The splits that a directory has features of, sorted."""
    own = sorted(Path(directory).glob(f"?*{_FEATURES}")) or sorted(Path(directory, _PRECOMP).glob(f"?*{_FEATURES}"))
    return [path.name.removesuffix(_FEATURES) for path in own if path.exists()]  # no links to nothing


def without_features(directory: str | os.PathLike[str]) -> str:
    """Advice on a directory that has no features, or not those of the split that is asked for."""
    if splits := splits_in(directory):
        return f"there is {', '.join(splits)}"
    if any(path.suffix.lower() in PICTURES for path in Path(directory).glob("*")):
        return (
            "these are pictures: `crossret extract` makes data of them and their captions by a pretrained encoder, and "
            "`crossret import-features` takes features of other programs"
        )
    return (
        f"a data directory holds SPLIT{_FEATURES}, region features, and SPLIT{_CAPTIONS}, a caption a line: make it of "
        "your own features by `crossret import-features`, or `crossret render-scenes --output DIR` to try"
    )


class PrecomputedDataset:
    """One split of a directory in the precomputed-feature format, memory-mapped and validated.

    ``{split}_ims.npy`` holds float32 or float16 region features (rows, k, d), or (rows, d) where an image has one
    region, and ``{split}_caps.txt`` one UTF-8 caption a line. ``{split}_image_of_caption.npy`` (captions,) tells, in
    ascending order, which row each caption is of; without it every image has as many captions, on consecutive lines.
    With as many rows as captions, the pairs are 1:1, unless every row is there five times in succession (some published
    development arrays are so): then these are one image again, and the first of its rows is used.

    ``{split}_boxes.npy``, which need not be there, holds float32 x0, y0, x1, y1 of the regions (rows, k, 4), in the
    order of the features, in pixels. Where images have fewer regions than k, ``{split}_lengths.npy`` (rows,) tells how
    many, and what lies behind is not read. ``{split}_ids.txt`` names the images, a line an image, or a caption as in
    published data, and ``{split}_caption_ids.txt`` the captions. Float16 features stay so on the disk and are widened
    batch by batch.

    ``{split}_words``, a directory, holds tokens of the captions, as ``extract_pictures`` writes it.

    VSE∞'s directories are taken as they are: the files may be in ``precomp``, and where there is ``id_mapping.json``,
    ids are numbers of files in it, whose own names images then have; MS-COCO's ids stay.

    Attributes:
        name: the file of the features, by which errors call the split.
        features: (rows, k, d) float32 or float16, read from the disk as it is used.
        boxes: (rows, k, 4) float32, likewise; None where there is no such file.
        boxes_name: that file.
        lengths: (rows,) int64, each row's number of regions; None where all have k.
        captions: the captions in the file's order.
        captions_name: that file.
        n_images, n_captions: how many there are.
        image_of_caption: (n_captions,) int64, the image that each caption describes.
        ids, caption_ids: n_images and n_captions names; None where there is no such file.
        feature_rows: (n_images,) int64, the row of ``features`` and of ``boxes`` that belongs to each image.
        words_name: the directory of these.
        n_regions, image_dim: k and d.
        stored: the features, and lengths, with the name of their file, by which an image that is wrong is named.
        held: (n_images, k, d), the images' features on a GPU, of the same dtype, zero behind an image's length; None
            where none holds them (see ``held_on``).

    Raises:
        FileNotFoundError: the directory, the features or the captions are missing; says what is needed.
        TypeError, ValueError: ``split`` is no name.
        ValueError: a file is malformed; the message names the file and the line, or what the array should have been.
    """

    ids: list[str] | None = None
    caption_ids: list[str] | None = None
    lengths: NDArray[np.int64] | None = None
    held: Tensor | None = None
    words_name: str | None = None

    def __init__(self, directory: str | os.PathLike[str], split: str) -> None:
        rows_file, captions_file = features_path(directory, split), captions_path(directory, split)
        if not Path(directory).is_dir():
            raise FileNotFoundError(f"{directory}: no such directory")
        if not rows_file.exists():
            raise FileNotFoundError(f"{rows_file}: no such file; {without_features(directory)}")
        if not captions_file.exists():
            raise FileNotFoundError(
                f"{captions_file}: no such file; it holds the captions of {rows_file.name}, a line each, those of an "
                f"image on consecutive lines"
            )
        self.name = str(rows_file)
        features = map_array(rows_file, ndim=(2, 3), dtypes=["<f4", "<f2"])
        check_image_size(rows_file, features)
        self.features: NDArray[np.floating] = features if features.ndim == 3 else features[:, None]
        lengths_file = lengths_path(directory, split)
        if lengths_file.exists():
            self.lengths = read_lengths(lengths_file, rows_file.name, *self.features.shape[:2])
        self.stored = StoredItems(rows_file, self.features, self.lengths)
        self.captions = read_captions(captions_file)
        self.captions_name = str(captions_file)
        rows, captions = len(self.features), len(self.captions)
        owners_file = owners_path(directory, split)
        told = owners_file.exists()
        times = PUBLISHED_CAPTIONS if not told and rows == captions and _rows_repeat(self.features) else 1
        if not told and captions % rows:
            raise ValueError(
                f"{rows_file}: {rows} rows do not fit the {captions} captions of {captions_file.name}: there must be "
                f"as many captions for every row, or {owners_file.name}, which tells the row of each"
            )
        self.n_images, self.n_captions = rows // times, captions
        self.image_of_caption: NDArray[np.int64] = (
            read_owners(owners_file, rows, captions) if told else alike(self.n_images, captions)
        )
        self.feature_rows: NDArray[np.int64] = np.arange(0, rows, times, dtype=np.int64)
        boxes_file = boxes_path(directory, split)
        self.boxes = _map_boxes(boxes_file, self.features.shape[:2], self.lengths)
        self.boxes_name = str(boxes_file)
        self.n_regions, self.image_dim = self.features[0].shape
        self.words_name = str(words_path(directory, split))
        self._stored_captions = self.captions
        ids_file = ids_path(directory, split)
        if ids_file.exists():
            names = read_image_ids(ids_file)
            if len(names) not in (self.n_images, captions):  # a line an image, or a caption as in published data
                raise ValueError(f"{ids_file}: names {len(names)} images, but {rows_file.name} has {self.n_images}")
            firsts = np.unique(self.image_of_caption, return_index=True)[1]
            self.ids = names if len(names) == self.n_images else [names[caption] for caption in firsts]
        ids_file = caption_ids_path(directory, split)
        if ids_file.exists():
            self.caption_ids = read_ids(ids_file)
            if len(self.caption_ids) != captions:
                raise ValueError(f"{ids_file}: names {len(self.caption_ids)} captions, but there are {captions}")

    @property
    def has_words(self) -> bool:
        """Whether there are tokens of the captions."""
        return self.words_name is not None and Path(self.words_name).is_dir()

    @cached_property
    def words(self) -> StoredItems:
        """Tokens of the captions, packed (rows, text_dim), read from the disk as they are used.

        Raises:
            FileNotFoundError: there are none; says what makes them.
            ValueError: a file is malformed, or they are not of the captions; names it.
        """
        if not self.has_words:
            raise FileNotFoundError(
                f"{self.words_name}: no such directory, which holds tokens of the captions: `crossret extract "
                "--text-encoder` writes it with the features; `crossret train --text-encoder` reads captions themselves"
            )
        found = StoredItems.of_directory(Path(str(self.words_name)))
        captions, read = self._stored_captions, Path(str(self.words_name)) / CAPTIONS_READ
        if len(found) != len(captions):
            raise ValueError(f"{self.words_name}: tokens of {len(found)} captions, not of {len(captions)}")
        if read.exists() and read_lines(read) != [digest(captions)]:
            raise ValueError(
                f"{self.words_name}: tokens of other captions than {self.captions_name} has: extract again"
            )
        return found

    @property
    def words_by(self) -> NamedEncoder | None:
        """Encoder that made these tokens; None where that is not told.

        Raises:
            ValueError: the file is malformed; names it.
        """
        path = Path(str(self.words_name)) / ENCODED_BY
        return NamedEncoder.of_json(read_json_object(path), str(path)) if path.exists() else None

    @cached_property
    def word_spans(self) -> NDArray[np.int32] | None:
        """(rows, 2), of each of these tokens the characters of its word in its caption; None where they are not told.

        Raises:
            ValueError: they are not as many as the tokens, or not in a caption; names the file and the token.
        """
        path = Path(str(self.words_name)) / SPANS
        if not path.exists():
            return None
        spans = map_array(path, ndim=2, dtypes=["<i4"])
        if spans.shape != (len(self.words.values), 2):
            raise ValueError(f"{path}: shape {spans.shape} is not {(len(self.words.values), 2)}, two for every token")
        offsets = self.words.offsets
        assert offsets is not None
        lengths = np.repeat([len(caption) for caption in self._stored_captions], np.diff(offsets))
        within = (0 <= spans[:, 0]) & (spans[:, 0] <= spans[:, 1]) & (spans[:, 1] <= lengths)
        if not within.all():
            row = int(within.argmin())
            raise ValueError(f"{path}: row {row}: {spans[row].tolist()} are no places in its caption")
        return spans

    def first(self, images: int) -> PrecomputedDataset:
        """The split's first images alone with their captions, as the published SCAN takes 1,000 of MS-COCO's dev.

        Raises:
            ValueError: ``images`` is less than 1, or the split has fewer; names its file.
        """
        if not 1 <= images <= self.n_images:
            raise ValueError(f"{self.name}: has {self.n_images} images, of which the first {images} cannot be taken")
        part = copy.copy(self)
        kept = np.flatnonzero(self.image_of_caption < images)  # the first captions, as owners ascend
        part.n_images, part.n_captions = images, len(kept)
        part.captions = [self.captions[caption] for caption in kept]
        part.image_of_caption = self.image_of_caption[kept]
        part.feature_rows = self.feature_rows[:images]
        part.ids = None if self.ids is None else self.ids[:images]
        part.caption_ids = None if self.caption_ids is None else [self.caption_ids[caption] for caption in kept]
        return part


def check_image_size(place: object, features: Any) -> None:
    """Raise a ValueError that names the place where the features of one image are more than any has."""
    if math.prod(features.shape[1:]) * features.dtype.itemsize > LARGEST_IMAGE:
        raise ValueError(f"{place}: images of shape {tuple(features.shape[1:])} are larger than any")


def _map_boxes(path: Path, regions: tuple[int, ...], lengths: NDArray[np.int64] | None) -> NDArray[np.float32] | None:
    """The boxes of (rows, k) regions; None where there is no file."""
    if not path.exists():
        return None
    boxes = map_array(path, ndim=3, dtypes=["<f4"])
    if boxes.shape != (*regions, 4):
        raise ValueError(f"{path}: shape {boxes.shape} is not {(*regions, 4)}, four numbers for every region")
    check_boxes(boxes, str(path), lengths)
    return boxes


def _rows_repeat(features: NDArray[np.floating]) -> bool:
    """Whether every row comes five times in succession, bit for bit, as in some published development arrays."""
    if len(features) % PUBLISHED_CAPTIONS:
        return False
    # Bits, because NaN is not equal to itself. Group by group: the whole may be gigabytes, and rows that are 1:1 differ
    # in the first group already.
    groups = features.view(f"u{features.itemsize}").reshape(-1, PUBLISHED_CAPTIONS, *features.shape[1:])
    return all(bool((group[1:] == group[0]).all()) for group in groups)


def read_captions(path: Path) -> list[str]:
    """Read one caption a line; a byte order mark before the first one is no part of it.

    Raises:
        ValueError: the file is empty, or a line shows nothing, holds a NUL, is not UTF-8 or has more than
            2¹⁶ characters; names the file and the line.
    """
    captions = [line.strip() for line in read_lines(path)]
    if not captions:
        raise ValueError(f"{path}: no captions")
    for number, caption in enumerate(captions, start=1):
        check_caption(caption, f"{path}, line {number}")
    return captions


def check_caption(caption: str, place: str) -> None:
    """Raise a ValueError that begins with the place where a caption shows nothing, holds a NUL, is not Unicode or has
    more than 2¹⁶ characters. How many words it may have is the model's to say: ``check_words``."""
    if not is_unicode(caption):
        raise ValueError(f"{place}: half of a surrogate pair in '{escaped(caption)}', which no UTF-8 text has")
    if "\0" in caption:
        raise ValueError(f"{place}: a NUL character, which no caption has")
    if shows_nothing(caption):
        raise ValueError(f"{place}: the caption is empty")
    if len(caption) > _MOST_CHARACTERS:
        raise ValueError(f"{place}: the caption has {len(caption):,} characters, more than {_MOST_CHARACTERS:,}")


def check_words(captions: Sequence[str], config: ModelConfig, place: str) -> None:
    """Raise a ValueError of the first caption that is longer than the model can read and that it does not cut.

    It begins with the place and the caption's number, from 1. Of a model that reads tokens it says nothing.
    """
    most = config.most_words
    if config.text_dim is not None or (config.max_words is not None and config.max_words <= most):
        return
    for number, caption in enumerate(captions, start=1):
        # A word has a character at least: the words of few captions have to be counted.
        if len(caption) > most and (words := len(tokenize(caption))) > most:
            raise ValueError(
                f"{place} {number}: the caption has {words:,} words, more than the {most:,} that the model can read"
            )


def shows_nothing(caption: str) -> bool:
    """Whether no character of a caption is visible."""
    return all(_is_invisible(character) for character in caption)


def _is_invisible(character: str) -> bool:
    """White space, or one of those that only steer: zero-width spaces and joiners, byte order marks, controls."""
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")
