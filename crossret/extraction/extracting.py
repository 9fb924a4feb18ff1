"""Pictures and captions through encoders into a split of a data directory, resumed where a process was killed."""

from __future__ import annotations

import os
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crossret.captions.images import CaptionedImage
from crossret.data.named_encoder import NamedEncoder
from crossret.data.owners import write_owners
from crossret.data.precomputed import (
    CAPTIONS_READ,
    ENCODED_BY,
    boxes_path,
    captions_path,
    features_path,
    ids_path,
    lengths_path,
    owners_path,
    words_path,
)
from crossret.extraction.grids import device_of
from crossret.extraction.parts import Column, Part
from crossret.extraction.protocol import PictureEncoder, TextEncoder, Tokens
from crossret.extraction.resuming import NAMED, PICTURES, WORDS, identity, ids_are_given, part_path, resumable
from crossret.extraction.sources import find_source
from crossret.files.arrays import map_array, write_rows
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.files.features import VALUES
from crossret.files.json import write_json
from crossret.files.lines import digest
from crossret.progress import Progress

_AHEAD = 2  # batches that are decoded while one is encoded

ProgressOf = Callable[[str], AbstractContextManager[Progress]]
Unreadable = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Options:
    """Options of an extraction.

    Attributes:
        batch_size: pictures, and captions, that are encoded together.
        workers: threads that decode pictures and prepare them.
        amp: whether to compute in bfloat16 where that is safe.
        half: whether to write float16, not float32.
        unreadable: whether a picture that cannot be read, or that the encoder cannot take, ends everything or is left
            out, with its captions.
    """

    batch_size: int = 32
    workers: int = 2
    amp: bool = False
    half: bool = False
    unreadable: Unreadable = "refuse"

    @property
    def dtype(self) -> str:
        """Dtype of stored tokens, as the .npy format spells it."""
        return "<f2" if self.half else "<f4"


@dataclass(frozen=True)
class Extracted:
    """Record of an extraction that was written.

    Attributes:
        pictures: how many.
        left_out: names of those that could not be read.
        without_captions: how many in the folder the file of captions does not name.
        others: names of files in the folder that are no pictures.
        fewest, most, dimensions: tokens of a picture, and numbers of each.
        captions: how many; 0 where none were given.
        words: tokens of all captions; 0 where there is no encoder of texts.
    """

    pictures: int
    left_out: tuple[str, ...]
    without_captions: int
    others: tuple[str, ...]
    fewest: int
    most: int
    dimensions: int
    captions: int
    words: int


def extract_pictures(
    pictures: str | os.PathLike[str],
    encoder: PictureEncoder[Any],
    directory: str | os.PathLike[str],
    split: str,
    *,
    captions: Mapping[str, CaptionedImage] | None = None,
    texts: TextEncoder | None = None,
    options: Options | None = None,
    progress: ProgressOf | None = None,
) -> Extracted:
    """Write tokens of the pictures in a folder as ``{split}_ims.npy``, ``_boxes.npy`` and ``_ids.txt``.

    And, where their numbers differ, ``_lengths.npy``; of captions ``_caps.txt`` and, where pictures differ in their
    number, ``_image_of_caption.npy``; with an encoder of texts ``{split}_words``, a directory of packed tokens of all
    captions, ``values.npy`` and ``offsets.npy``, with ``spans.npy``, (rows, 2) int32: the characters, from the first to
    behind the last, of the word in the caption that a token is of or a part of; 0, 0 where that is not known; and
    ``captions.sha256``, by which tokens of other captions than the split's are told, and ``encoder.json``, what made
    them, by which a model that is trained on them reads new captions.

    Pictures are those that ``captions`` names, in its order; else those of ``{split}_ids.txt``, where it is there,
    as ``crossret import-captions`` leaves it; else all, sorted by path.

    Finished batches are kept in a hidden directory beside the split's files until all are. After a kill the same call
    goes on from the last batch, and writes the bytes that it would have written.

    Args:
        pictures: the folder; pictures in folders inside it count, but hidden ones (see ``pictures_below``).
        encoder: of pictures.
        directory: the data directory, made if needed.
        split: the split's name.
        captions: images by the names of pictures' files, as ``read_captions_of_pictures`` has them.
        texts: encodes the captions, too: without ``captions`` those of ``{split}_caps.txt``.
        options: how.
        progress: called with "pictures" and "captions": a context whose value is called with (done, all), first with
            those that were done before.

    Returns:
        A record of what was written.

    Raises:
        OSError: a file cannot be read or written; FileExistsError where one of those to write is there,
            BlockingIOError where another process works in the directory.
        ValueError: there is no picture, or its name is no id; a picture is named and not there, or cannot be read
            and must be; there are no captions to encode; features are not finite; an extraction with other settings was
            begun; names the place.
    """
    how = options or Options()
    part, words_directory = part_path(directory, split), words_path(directory, split)
    with occupied(directory):
        source = find_source(
            Path(pictures),
            captions,
            directory,
            split,
            named=captions is None and ids_are_given(part, ids_path(directory, split)),
            with_captions=texts is not None,
            skip=how.unreadable == "skip",
        )
        if not part.exists():
            outputs = [place(directory, split) for place in (boxes_path, lengths_path)]
            outputs += [] if source.named else [ids_path(directory, split)]
            outputs += [] if captions is None else [captions_path(directory, split), owners_path(directory, split)]
            outputs += [] if texts is None else [words_directory]
            _check_free(outputs)
        _check_free([features_path(directory, split)])
        settings = {
            NAMED: source.named,
            "list of pictures": digest(
                f"{name} {path.stat().st_size}" for name, path in zip(source.names, source.files, strict=True)
            ),
            "list of captions": digest(source.captions_of(range(len(source.files)))),
            "batch size": how.batch_size,
            "precision": "bfloat16 where that is safe" if how.amp else "float32",
            "dtype": how.dtype,
            "encoder": identity(encoder),
            "text encoder": None if texts is None else identity(texts),
        }
        shown = progress or (lambda what: nullcontext(lambda done, total: None))
        with resumable(part, settings, directory):
            columns = {"features": Column(encoder.dim, how.dtype), "boxes": Column(4, "<f4")}
            images = Part(part / PICTURES, columns)
            with images.appending(), shown("pictures") as show:
                _encode_pictures(images, source.files, encoder, how, show)
        if not images.lengths:
            shutil.rmtree(part)
            raise ValueError(f"{os.fspath(pictures)}: none of its {len(source.files)} pictures can be read")
        left_out = set(images.left_out)
        kept = [place for place in range(len(source.files)) if place not in left_out]
        lines = source.captions_of(kept)
        words = 0
        if texts is not None:
            if not words_directory.exists():  # made by a call that was then interrupted
                with shown("captions") as show:
                    _encode_captions(part / WORDS, lines, texts, how, show, words_directory)
            words = len(map_array(words_directory / VALUES, ndim=2, dtypes=[how.dtype]))
        if captions is not None and source.captions is not None:
            _write_lines(captions_path(directory, split), lines)
            write_owners(owners_path(directory, split), [len(source.captions[place]) for place in kept])
        if not source.named:
            ids = source.ids
            _write_lines(ids_path(directory, split), [ids[place] for place in kept])
        if min(images.lengths) < max(images.lengths):
            with write_rows(lengths_path(directory, split), (), "<i4") as write:
                write(np.array(images.lengths, np.int32))
        images.write_padded("boxes", boxes_path(directory, split))
        images.take_padded("features", features_path(directory, split))  # last: with these the split is there
        shutil.rmtree(part)
    names = tuple(source.names[place] for place in images.left_out)
    shape = min(images.lengths), max(images.lengths), encoder.dim
    return Extracted(len(kept), names, source.without, tuple(source.others), *shape, len(lines), words)


def _check_free(outputs: Sequence[Path]) -> None:
    for path in outputs:
        if path.exists():
            raise FileExistsError(f"{path}: is there already; choose another split or directory")


def _encode_pictures(
    part: Part, files: Sequence[Path], encoder: PictureEncoder[Any], options: Options, progress: Progress
) -> None:
    """Append the tokens and boxes of the pictures that are not done yet, batch by batch."""
    progress(part.done, len(files))
    for batch in encode_files(files, encoder, options, start=part.done):
        part.append(batch.done, batch.lengths, {"features": batch.values, "boxes": batch.boxes}, batch.left_out)
        progress(batch.done, len(files))


@dataclass(frozen=True)
class EncodedFiles:
    """Tokens of some pictures.

    Attributes:
        done: how many files, from the first on, have had their turn with these.
        places: which of the files they are.
        lengths: tokens of each.
        values, boxes: (rows, D) and (rows, 4), as those of ``Tokens``, on the CPU.
        left_out: places of those that could not be read.
    """

    done: int
    places: list[int]
    lengths: list[int]
    values: NDArray[np.floating]
    boxes: NDArray[np.float32]
    left_out: list[int]


def encode_files(
    files: Sequence[Path], encoder: PictureEncoder[Any], options: Options, *, start: int = 0
) -> Generator[EncodedFiles, None, None]:
    """Tokens of the pictures of files from place ``start`` on, batch by batch, while others are decoded ahead.

    Warnings name the files that are left out, too.

    Raises:
        OSError, ValueError: as ``extract_pictures`` of a picture.
    """
    starts = range(start, len(files), options.batch_size)
    with _prepared(encoder, files, starts, options) as batches:
        for first, batch in zip(starts, batches, strict=True):
            left_out = [place for place, item in batch.items() if isinstance(item, ValueError)]
            for place in left_out:
                warnings.warn(f"left out: {batch.pop(place)}", stacklevel=1)
            tokens = _none(encoder.dim)
            if batch:
                with _computing(encoder.module, options):
                    tokens = encoder.encode(list(batch.values()))
            assert tokens.boxes is not None
            values = _cast(tokens, options, [os.fspath(files[place]) for place in batch])
            done = min(first + options.batch_size, len(files))
            yield EncodedFiles(done, list(batch), tokens.lengths, values, tokens.boxes.numpy(), left_out)


@contextmanager
def _prepared(
    encoder: PictureEncoder[Any], files: Sequence[Path], starts: range, options: Options
) -> Iterator[Iterator[dict[int, Any]]]:
    """Batches of what the encoder reads, by places in ``files``, made by threads ahead of who takes them.

    A picture that cannot be read is a ValueError in its place, or raises it.
    """

    def prepare(path: Path) -> Any:
        try:
            return encoder.prepare_file(path)
        except ValueError as error:
            if options.unreadable == "refuse":
                raise ValueError(f"{error}; --unreadable skip leaves such pictures out") from error
            return error

    pool = ThreadPoolExecutor(options.workers, thread_name_prefix="pictures")
    waiting: deque[dict[int, Future[Any]]] = deque()
    ahead = iter(starts)

    def submit() -> None:
        start = next(ahead, None)
        if start is not None:
            places = range(start, min(start + options.batch_size, len(files)))
            waiting.append({place: pool.submit(prepare, files[place]) for place in places})

    def batches() -> Iterator[dict[int, Any]]:
        for _ in range(_AHEAD):
            submit()
        while waiting:
            submit()
            yield {place: future.result() for place, future in waiting.popleft().items()}

    try:
        yield batches()
    finally:
        pool.shutdown(cancel_futures=True)


def _encode_captions(
    directory: Path,
    lines: Sequence[str],
    texts: TextEncoder,
    options: Options,
    progress: Progress,
    output: Path,
) -> None:
    """Encode the captions that are not done yet, batch by batch, and make a corpus of all."""
    part = Part(directory, {"values": Column(texts.dim, options.dtype), "spans": Column(2, "<i4")})
    progress(part.done, len(lines))
    with part.appending():
        for start in range(part.done, len(lines), options.batch_size):
            batch = lines[start : start + options.batch_size]
            with _computing(texts.module, options):
                tokens = texts.encode_texts(batch)
            values = _cast(tokens, options, [f"caption {start + place + 1}" for place in range(len(batch))])
            spans = np.zeros((len(values), 2), np.int32) if tokens.spans is None else tokens.spans
            part.append(start + len(batch), tokens.lengths, {"values": values, "spans": spans})
            progress(start + len(batch), len(lines))
    _write_lines(part.directory / CAPTIONS_READ, [digest(lines)])
    write_json(part.directory / ENCODED_BY, asdict(NamedEncoder.of(texts.name, identity(texts))))
    part.become_corpus(output)


@contextmanager
def _computing(module: nn.Module, options: Options) -> Iterator[None]:
    with torch.inference_mode(), torch.autocast(device_of(module).type, torch.bfloat16, enabled=options.amp):
        yield


def _none(dim: int) -> Tokens:
    """The tokens of no picture."""
    return Tokens(torch.empty(0, dim), [], torch.empty(0, 4))


def _cast(tokens: Tokens, options: Options, names: Sequence[str]) -> NDArray[np.floating]:
    """The values as they are written. Raises a ValueError that names the first item that cannot be."""
    values = tokens.values.float().cpu().numpy()
    with np.errstate(over="ignore"):
        values = values.astype(options.dtype, copy=False)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        item = int(np.searchsorted(np.cumsum(tokens.lengths), finite.argmin(), side="right"))
        advice = "; --float32 has room for larger ones" if options.half else ""
        raise ValueError(f"{names[item]}: features are not finite in {np.dtype(options.dtype).name}{advice}")
    return values


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    with atomic_write(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
