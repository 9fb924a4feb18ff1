"""Making an index of pictures, and bringing it up to date: what is in it already is not encoded again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from crossret.data.named_encoder import NamedEncoder
from crossret.data.pictures import pictures_below
from crossret.data.vocabulary import Vocabulary
from crossret.extraction.choosing import load_text_encoder
from crossret.extraction.extracting import EncodedFiles, Options, encode_files
from crossret.extraction.protocol import PictureEncoder
from crossret.extraction.resuming import identity
from crossret.files.arrays import write_rows
from crossret.files.directories import new_directory, occupied
from crossret.files.features import OFFSETS, VALUES, StoredItems
from crossret.files.json import write_json
from crossret.files.shards import SHARDS, StoredShards
from crossret.models import Encoded, Matcher, save_model
from crossret.models.protocol import evaluating
from crossret.models.texts import reads_texts
from crossret.picture_index.files import (
    MODEL_DIRECTORY,
    Picture,
    encoder_of_index,
    has_model,
    is_index,
    read_pictures,
    write_index,
    write_pictures,
)
from crossret.progress import Progress
from crossret.search.encoding import write_items
from crossret.search.manifest import IMAGES, MODEL, Manifest
from crossret.search.stored import StoredEncoded, stored_vectors, vectors_file
from crossret_kernels.extending import release_pages

_SHARD = 1024  # pictures: what is encoded again at most after a kill


@dataclass(frozen=True)
class Indexed:
    """Record of an update of an index.

    Attributes:
        pictures: how many it has now.
        added, changed, unchanged: of the folder's.
        gone: pictures that were in the folder before.
        left_out: paths of those that could not be read.
        others: names of files in the folder that are no pictures.
    """

    pictures: int
    added: int
    changed: int
    unchanged: int
    gone: int
    left_out: tuple[str, ...]
    others: tuple[str, ...]


def check_index(directory: Path) -> None:
    """Raise a FileExistsError unless an index is there, or may be made there, where a killed call left its model."""
    if is_index(directory) or not directory.exists():
        return
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    if any(name != MODEL_DIRECTORY and not name.startswith(".") for name in found):
        raise FileExistsError(f"{directory}: not an index of pictures, and not empty; choose another directory")


def update_index(
    directory: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    encoder: PictureEncoder[Any],
    model: Matcher | None = None,
    vocabulary: Vocabulary | None = None,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Indexed:
    """Make an index of the pictures in a folder and in those inside it, or add them to one that is there.

    Pictures that are in it as they are, by size and time of change, stay; others are encoded, and those that were of
    this folder and are gone leave it. It is whole at any time: after a kill the same call goes on, and encodes no more
    than some thousand pictures again. Features are as ``extract_pictures`` writes them.

    Args:
        directory: the index, made if needed.
        folder: the pictures, as ``pictures_below`` finds them.
        encoder: makes their tokens.
        model: encodes these; in evaluation mode meanwhile. None: tokens are kept as they are, of an encoder of late
            interaction.
        vocabulary: the model's.
        options: as ``extract_pictures`` takes them, of which ``half`` does not count.
        progress: called with (pictures encoded, all that are to be).

    Raises:
        OSError: a file cannot be read or written; FileExistsError: ``directory`` is something else; BlockingIOError:
            another process writes in it.
        ValueError: the folder has no pictures, a picture cannot be read and must be, the index is of another encoder or
            model, or the model does not read such tokens.
    """
    place, how = Path(directory), options or Options()
    if model is None:
        load_text_encoder(encoder.name)  # which the pictures are searched by
    elif not reads_texts(model, vocabulary):
        raise ValueError(
            f"this {model.kind} reads tokens of captions, so that no text finds pictures by it: "
            "`crossret train --text-encoder` trains one that reads texts"
        )
    elif model.config.image_dim != encoder.dim:
        raise ValueError(
            f"{encoder.name}: tokens of {encoder.dim} numbers, but the model's image_dim is {model.config.image_dim}"
        )
    root = os.path.abspath(folder)
    names, others = pictures_below(folder)
    check_index(place)
    with occupied(place):
        check_index(place)
        index = _Index(place, encoder, model, vocabulary)
        now = {name: Picture.of(root, name) for name in names}
        known = {
            picture.name: picture for shard in index.shards for picture in shard.pictures if picture.folder == root
        }
        kept = {name for name, picture in now.items() if known.get(name) == picture}
        index.remove({picture for name, picture in known.items() if name not in kept})
        wanted = [picture for name, picture in now.items() if name not in kept]
        left_out = index.add(wanted, encoder, how, progress)
        changed = sum(picture.name in known and str(picture.path) not in left_out for picture in wanted)
        added = len(wanted) - len(left_out) - changed
        total = sum(len(shard.pictures) for shard in index.shards)
    if not total:
        raise ValueError(f"{os.fspath(folder)}: none of its {len(names)} pictures can be read")
    gone = len(known.keys() - now.keys())
    return Indexed(total, added, changed, len(kept), gone, tuple(left_out), tuple(others))


@dataclass(frozen=True)
class _Shard:
    name: str
    pictures: list[Picture]


class _Index:
    """An index that nobody else writes: shards, of which a list on the disk says which count."""

    def __init__(
        self, place: Path, encoder: PictureEncoder[Any], model: Matcher | None, vocabulary: Vocabulary | None
    ) -> None:
        """Open it, or make one without pictures; raises a ValueError where it is of another encoder or model."""
        self.images, self.model = place / IMAGES, model
        own = NamedEncoder.of(encoder.name, identity(encoder))
        if is_index(place):
            before = encoder_of_index(place)
            if before.identity != own.identity:
                raise ValueError(
                    f"{place}: its pictures were encoded by {before.name}, not by {own.name} as it is now: make another"
                )
            if has_model(place) != (model is not None):
                raise ValueError(
                    f"{place}: its pictures were encoded {'by a model' if model is None else 'without'} one"
                )
        else:
            shutil.rmtree(place / MODEL_DIRECTORY, ignore_errors=True)  # left by a call that was killed
            if model is not None:
                with new_directory(place / MODEL_DIRECTORY) as made:
                    save_model(model, made, vocabulary)
            write_index(place, own)
        self.shards: list[_Shard] = []
        self.images.mkdir(exist_ok=True)
        if (self.images / SHARDS).exists():
            if model is not None:
                StoredEncoded.of_directory(self.images).check(model)
            shards = StoredShards.of_directory(self.images).shards
            self.shards = [_Shard(shard.directory.name, read_pictures(shard.directory)) for shard in shards]
        listed = {shard.name for shard in self.shards}
        for path in self.images.iterdir():
            if path.is_dir() and path.name not in listed:  # left by a call that was killed
                shutil.rmtree(path)
        self.next = 1 + max((int(name) for name in listed if name.isdecimal()), default=-1)

    def remove(self, pictures: set[Picture]) -> None:
        """Copy shards that have some of these without them."""
        for number, shard in enumerate(self.shards):
            keep = [place for place, picture in enumerate(shard.pictures) if picture not in pictures]
            if len(keep) == len(shard.pictures):
                continue
            left = [shard.pictures[place] for place in keep]
            self.shards[number] = _Shard(self._new().name if left else "", left)
            if left:
                _copy(self.images / shard.name, self.images / self.shards[number].name, keep)
                write_pictures(self.images / self.shards[number].name, left)
        self.shards = [shard for shard in self.shards if shard.pictures]
        self._list()

    def add(
        self, pictures: list[Picture], encoder: PictureEncoder[Any], options: Options, progress: Progress | None
    ) -> list[str]:
        """Encode pictures, a shard after another; the paths of those that are left out."""
        left_out: list[str] = []
        for start in range(0, len(pictures), _SHARD):
            some = pictures[start : start + _SHARD]
            kept: list[Picture] = []
            found = encode_files([picture.path for picture in some], encoder, options)

            def show(done: int, start: int = start) -> None:
                if progress is not None:
                    progress(start + done, len(pictures))

            directory = self._new()
            with evaluating(self.model) if self.model is not None else nullcontext(), closing(found):
                encoded = self._encoded(found, show, some, kept, left_out)
                first = next(encoded, None)
                if first is None:  # all were left out
                    continue
                written = write_items(directory, chain([first], encoded))
            write_pictures(directory, kept)
            if self.model is not None:
                Manifest.of(self.model, IMAGES, written.vectors).write(self.images)
            self.shards.append(_Shard(directory.name, kept))
            self._list()
        return left_out

    def _encoded(
        self,
        batches: Iterator[EncodedFiles],
        show: Callable[[int], None],
        pictures: list[Picture],
        kept: list[Picture],
        left_out: list[str],
    ) -> Iterator[Encoded]:
        """Items that the model encodes from batches of tokens; adds to the pictures ``kept`` and to ``left_out``."""
        device = torch.device("cpu") if self.model is None else next(self.model.parameters()).device
        for batch in batches:
            kept += [pictures[place] for place in batch.places]
            left_out += [str(pictures[place].path) for place in batch.left_out]
            if batch.places:
                features, boxes = (
                    pad_sequence(torch.from_numpy(rows).float().split(batch.lengths), batch_first=True).to(device)
                    for rows in (batch.values, batch.boxes)
                )
                lengths = torch.tensor(batch.lengths, device=device)
                if self.model is None:
                    yield Encoded(features, lengths)
                else:
                    yield self.model.encode_images(features, None if len({*batch.lengths}) == 1 else lengths, boxes)
            show(batch.done)

    def _new(self) -> Path:
        directory = self.images / f"{self.next:05}"
        directory.mkdir()
        self.next += 1
        return directory

    def _list(self) -> None:
        """Say on the disk which shards count, and remove the others."""
        listed = {shard.name for shard in self.shards}
        if not self.shards:
            for name in (SHARDS, MODEL):
                (self.images / name).unlink(missing_ok=True)
        else:
            dim = StoredItems.of_directory(self.images / self.shards[0].name).dim
            entries = [{"path": shard.name, "items": len(shard.pictures)} for shard in self.shards]
            write_json(self.images / SHARDS, {"dim": dim, "shards": entries})
        for path in self.images.iterdir():
            if path.is_dir() and path.name not in listed:
                shutil.rmtree(path)


def _copy(shard: Path, output: Path, keep: list[int]) -> None:
    """Copy some of a shard's items."""
    items = StoredItems.of_directory(shard)
    assert items.offsets is not None
    lengths = np.diff(items.offsets)[keep]
    with write_rows(output / VALUES, items.values.shape[1:], items.values.dtype.str) as write:
        for place in keep:
            write(items.values[items.offsets[place] : items.offsets[place + 1]])
        release_pages(items.values)
    vectors = stored_vectors(items, Manifest.read(shard.parent)) if (shard.parent / MODEL).exists() else {}
    for name, array in vectors.items():
        with write_rows(output / vectors_file(name), array.shape[1:], array.dtype.str) as write:
            write(array[keep])
    with write_rows(output / OFFSETS, (), "<i8") as write:
        write(np.concatenate([[0], lengths.cumsum()]).astype(np.int64))
