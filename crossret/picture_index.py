"""An index of pictures: what a model made of those in some folders, with that model, to be searched by text.

A directory holds ``index.json``, which encoder made the tokens; ``model``, as ``save_model`` writes one; and
``images``, shards of what the model encoded. In a shard ``pictures.json`` says of which files its items are. Without
``model`` the encoder is one of late interaction, whose tokens are scored by MaxSim with those of texts.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from crossret.data.named_encoder import NamedEncoder
from crossret.data.precomputed import check_caption
from crossret.extraction.choosing import load_picture_encoder
from crossret.extraction.late_interaction import LateInteractionTexts
from crossret.extraction.protocol import PictureEncoder
from crossret.files.json import read_json_object, write_json
from crossret.files.shards import StoredShards
from crossret.models.base import encoder_of
from crossret.retriever import Found, Retriever
from crossret.search.manifest import IMAGES
from crossret.search.retrieval import retrieve
from crossret.search.stored import StoredEncoded
from crossret_kernels import maxsim_scores

INDEX, MODEL_DIRECTORY, PICTURES = "index.json", "model", "pictures.json"
_FORMAT = "crossret index 1"


@dataclass(frozen=True)
class Picture:
    """A file as it was when it was encoded.

    Attributes:
        folder: the folder that was indexed, an absolute path.
        name: of the file within it, with "/".
        size: of the file, in bytes.
        changed: when it was last changed, in nanoseconds.
    """

    folder: str
    name: str
    size: int
    changed: int

    @property
    def path(self) -> Path:
        """Where it was."""
        return Path(self.folder, self.name)

    @staticmethod
    def of(folder: str, name: str) -> Picture:
        """Of a file as it is now. Raises an OSError."""
        status = os.stat(Path(folder, name))
        return Picture(folder, name, status.st_size, status.st_mtime_ns)


def write_index(directory: Path, encoder: NamedEncoder) -> None:
    """Write ``index.json``, which encoder made the tokens of an index's pictures; raises an OSError."""
    write_json(directory / INDEX, {"format": _FORMAT, "encoder": asdict(encoder)})


def encoder_of_index(directory: Path) -> NamedEncoder:
    """Encoder that made the tokens of an index's pictures.

    Raises:
        OSError: the directory holds no index, or it cannot be read. ValueError: it is malformed; names the file.
    """
    path = directory / INDEX
    contents = read_json_object(path)
    if contents.get("format") != _FORMAT or "encoder" not in contents:
        raise ValueError(f"{path}: not an index of this version; make it again")
    return NamedEncoder.of_json(contents["encoder"], f"{path}: 'encoder'")


def has_model(directory: Path) -> bool:
    """Whether an index has a model, not an encoder of late interaction alone."""
    return (directory / MODEL_DIRECTORY).is_dir()


def is_index(directory: Path) -> bool:
    """Whether a directory holds an index of pictures."""
    return (directory / INDEX).is_file()


def read_pictures(shard: Path) -> list[Picture]:
    """Of which files the items of a shard are, in their order.

    Raises:
        OSError: it cannot be read. ValueError: it is malformed; names the file and the item.
    """
    path = shard / PICTURES
    entries = read_json_object(path).get("pictures")
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected an object of pictures, a list")
    return [_picture(entry, f"{path}: picture {number}") for number, entry in enumerate(entries)]


def write_pictures(shard: Path, pictures: list[Picture]) -> None:
    """Write what ``read_pictures`` reads; raises an OSError."""
    write_json(shard / PICTURES, {"pictures": [asdict(picture) for picture in pictures]})


class PictureIndex:
    """Pictures that are found by text.

    Attributes:
        directory: where it is.
        retriever: its model, with its words; None where an encoder of late interaction does without.
        pictures: the files, in the order of ``Found.indices``.
        images: what was encoded.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, device: Any = None, text_encoder: str | None = None
    ) -> None:
        """Open what ``crossret index`` made.

        Args:
            directory: of the index.
            device: where its model goes, or its encoder of texts; the CPU by default.
            text_encoder: as that of ``Retriever.from_pretrained``.

        Raises:
            OSError: it is no index, or a file cannot be read. ValueError: a file is malformed; names it.
        """
        self.directory = Path(directory)
        self._device = torch.device("cpu" if device is None else device)
        self._encoder = encoder_of_index(self.directory)
        self._loaded: PictureEncoder[Any] | None = None
        images = self.directory / IMAGES
        self.retriever: Retriever | None = None
        self.images: StoredEncoded | StoredShards
        if has_model(self.directory):
            self.retriever = Retriever.from_pretrained(
                self.directory / MODEL_DIRECTORY, device=device, text_encoder=text_encoder
            )
            self.images = StoredEncoded.of_directory(images, IMAGES)
            shards = self.images.shards
        elif text_encoder is not None:
            raise ValueError(f"{directory}: text_encoder was given, but its own encoder reads texts, too")
        else:
            self.images = shards = StoredShards.of_directory(images)
        self.pictures: list[Path] = []
        for shard in shards.shards:
            own = read_pictures(shard.directory)
            if len(own) != shard.items:
                raise ValueError(f"{shard.directory / PICTURES}: {len(own)} pictures of {shard.items} items")
            self.pictures += [picture.path for picture in own]

    def __len__(self) -> int:
        return len(self.pictures)

    def search(self, captions: str | list[str], k: int = 10) -> Found:
        """The best k pictures for every caption: ``pictures`` has the file of each of ``Found.indices``.

        Raises:
            TypeError, ValueError: as ``Retriever.encode_text``, or k is less than 1; without a model as
                ``text_encoder``.
        """
        scorer, queries = self.asked(captions)
        return Found(*retrieve(scorer, queries, self.images, k=k, query="caption"))

    def asked(self, captions: str | list[str]) -> tuple[Any, Any]:
        """What scores pictures with captions, and the captions as it takes them; raises as ``search``."""
        if self.retriever is not None:
            return self.retriever.model, self.retriever.encode_text(captions)
        texts = [captions] if isinstance(captions, str) else list(captions)
        for number, text in enumerate(texts):
            check_caption(text, f"captions[{number}]")
        if not texts:
            raise ValueError("captions: there are none")
        with torch.inference_mode():
            tokens = self.text_encoder().encode_texts(texts)
        rows = list(tokens.values.float().cpu().split(tokens.lengths))
        # Pictures stand where images do: every token of a query takes its best of theirs.
        return partial(maxsim_scores, direction="t2i"), rows

    def picture_encoder(self) -> PictureEncoder[Any]:
        """What made the tokens of its pictures, on its device: the model's own, or by its name, loaded once.

        Raises:
            OSError, ValueError: as ``load_picture_encoder``.
        """
        own = None if self.retriever is None else encoder_of(self.retriever.model)
        if own is not None:
            return own.reader
        if self._loaded is None:
            self._loaded = load_picture_encoder(self._encoder.name)
            self._loaded.module.to(self._device)
        return self._loaded

    def text_encoder(self) -> LateInteractionTexts:
        """The same as it reads texts, of an index without a model; raises as ``picture_encoder``."""
        return LateInteractionTexts(self._encoder.name, module=self.picture_encoder().module)


load_index = PictureIndex


def _picture(entry: Any, place: str) -> Picture:
    kinds = {"folder": str, "name": str, "size": int, "changed": int}
    if not isinstance(entry, dict) or entry.keys() != kinds.keys():
        raise ValueError(f"{place}: expected an object of {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(entry[name]) is not kind:
            raise ValueError(f"{place}: {name} must be {'a text' if kind is str else 'an integer'}")
    within = PurePosixPath(entry["name"])
    if within.is_absolute() or ".." in within.parts or "\0" in entry["name"] + entry["folder"]:
        raise ValueError(f"{place}: name must be a path within the folder, not {entry['name']!r}")
    return Picture(**entry)
