"""A split of pictures and captions that a model reads through its encoder: nothing is extracted before."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossret import system
from crossret.data.precomputed import PrecomputedDataset, captions_path, ids_path, words_path
from crossret.data.prepared import PictureFiles
from crossret.extraction.protocol import PictureEncoder
from crossret.extraction.sources import find_source, read_captions_of_pictures
from crossret.files.features import StoredItems

_MOST_WORKERS = 8
_ENDINGS = (".tsv", ".jsonl", ".csv", ".token", ".json")


class PictureSplit(PrecomputedDataset):
    """One split of a directory of pictures with their captions, in the place of a split of features.

    Either ``{split}.tsv``, ``.jsonl``, ``.csv``, ``.token`` or ``.json`` names the pictures and their captions, as
    ``read_captions_of_pictures`` has it, and the pictures are in the folder ``{split}``; or captions are in
    ``{split}_caps.txt``, as those of a split of features, and the pictures in ``images/{split}``, as rendered scenes
    have them, or in ``{split}``: those that ``{split}_ids.txt`` names, else all, sorted by name.

    Attributes:
        features: the pictures as the encoder reads them.
        boxes: None: the encoder tells them with its tokens.
        n_regions: tokens of the first picture; others may have more or fewer, where the encoder keeps their shapes.
        ids: the pictures' paths in their folder, without endings.

    Args:
        directory: where these are.
        split: the split's name.
        encoder: the encoder that will read the pictures.

    Raises:
        FileNotFoundError: there is no such directory, or none of these files; says what is needed.
        OSError, ValueError: as ``read_captions_of_pictures`` and ``extract_pictures``; the first picture is unreadable.
    """

    def __init__(self, directory: str | os.PathLike[str], split: str, encoder: PictureEncoder[Any]) -> None:
        root = Path(directory)
        if not root.is_dir():
            raise FileNotFoundError(f"{directory}: no such directory")
        captions, ids = captions_path(root, split), ids_path(root, split)
        named_so = [root / f"{split}{ending}" for ending in _ENDINGS]
        own = [path for path in named_so if path.exists() and ((root / split).is_dir() or not captions.exists())]
        if not own and not captions.exists():
            raise FileNotFoundError(
                f"{root / split}{_ENDINGS[0]}: no such file; pictures in {root / split} have captions there, a line "
                f"file<TAB>caption each, or in {split}{', '.join(_ENDINGS[1:])}; or pictures in "
                f"{root / 'images' / split} in {captions.name}"
            )
        inside = root / "images" / split
        folder = root / split if own or not inside.is_dir() else inside
        given = read_captions_of_pictures(own[0], split=split) if own else None
        named = given is None and ids.exists()
        source = find_source(folder, given, root, split, named=named, with_captions=True, skip=False)
        assert source.captions is not None
        for count, why in ((source.without, "they have no captions"), (len(source.others), "they are no pictures")):
            if count:
                warnings.warn(f"{folder}: left out, as {why}: {count:,}", stacklevel=2)
        self.name, self.captions_name, self.boxes_name = (
            str(folder),
            str(own[0] if own else captions),
            f"{folder}: boxes",
        )
        self.captions = source.captions_of(range(len(source.files)))
        self.n_images, self.n_captions = len(source.files), len(self.captions)
        first = encoder.prepare_file(source.files[0])
        with torch.no_grad():
            self.n_regions = encoder.encode([first]).lengths[0]
        self.image_dim = encoder.dim
        workers = min(system.cores(), _MOST_WORKERS)
        pictures: Any = PictureFiles(source.files, encoder.prepare_file, (self.n_regions, encoder.dim), workers)
        self.features, self.boxes = pictures, None
        self.stored = _Pictures(folder, pictures)
        self.image_of_caption = np.repeat(np.arange(self.n_images), [len(own) for own in source.captions])
        self.feature_rows = np.arange(self.n_images, dtype=np.int64)
        self.ids = source.ids
        self.words_name, self._stored_captions = str(words_path(root, split)), self.captions


class _Pictures(StoredItems):
    """Pictures, as errors name them; their pixels are always finite."""

    def is_finite(self, item: int) -> bool:
        return True
