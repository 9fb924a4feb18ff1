"""A split's embeddings as corpora on the disk, which are searched and scored without the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.corpus import PrecomputedCorpus
from crossret.data.directories import new_directory
from crossret.evaluation import Progress
from crossret.evaluation.finiteness import why_not_finite
from crossret.files.arrays import write_rows
from crossret.files.features import OFFSETS, VALUES
from crossret.files.naming import write_file
from crossret.models.checkpoints import describe_model
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret.search.items import BATCH, EncodedCaptions, EncodedImages, evaluating

IMAGES, CAPTIONS, MODEL = "images", "captions", "model.json"


def encode_split(model: Matcher, corpus: PrecomputedCorpus, output: Path, *, progress: Progress | None = None) -> None:
    """Write what a model makes of a split's images and captions, each side to a directory of its own.

    ``images`` and ``captions`` hold the sequences of ``Encoded`` as ``StoredItems.of_directory`` reads them:
    ``values.npy`` (rows, D) float32 and ``offsets.npy`` (n + 1,) int64. Beside them is what else the model keeps of
    every item, ``vectors_NAME.npy`` (n, …), float32 or int64. Items are encoded and written in batches: memory is
    bounded, whatever their number. ``model.json`` is the model's kind and hyper-parameters. ``output`` is there when it
    is whole.

    Embeddings that are not finite are written as they are, so that one bad image does not cost all others, and a
    warning names the first.

    Args:
        model: a trained model, on any device; its mode is restored.
        corpus: the split, with the model's vocabulary.
        output: the directory to write, absent or empty; see ``check_new_directory``.
        progress: called with (images and captions done, all of them).

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the model keeps vectors of another shape of some items than of others.
    """
    total = corpus.n_images + corpus.n_captions

    def after(done: int) -> Callable[[int], None]:
        return lambda more: progress(done + more, total) if progress is not None else None

    with evaluating(model), new_directory(output) as directory:
        write_file(directory / MODEL, describe_model(model).encode())
        wrong_image = _write_side(directory / IMAGES, EncodedImages(model, corpus), after(0))
        wrong_caption = _write_side(directory / CAPTIONS, EncodedCaptions(model, corpus), after(corpus.n_images))
    if wrong_image is not None:
        _warn(output / IMAGES, wrong_image, why_not_finite(corpus, wrong_image))
    if wrong_caption is not None:
        _warn(output / CAPTIONS, wrong_caption, "the model's weights are not finite or its numbers go beyond float32")


def _write_side(directory: Path, items: EncodedImages | EncodedCaptions, show: Callable[[int], None]) -> int | None:
    """Write the items of one side; the first of them that is not finite, if any."""
    directory.mkdir()
    wrong = None
    ends = [np.zeros(1, np.int64)]
    with ExitStack() as files:
        writers: dict[str, Callable[[NDArray[np.generic]], None]] = {}
        for run in items.runs(BATCH):
            encoded = items[run].cpu()
            for name, array in _arrays(encoded).items():
                if name not in writers:  # what a model keeps is known when it has encoded
                    dtype = "<f4" if array.is_floating_point() else "<i8"
                    writers[name] = files.enter_context(write_rows(directory / name, tuple(array.shape[1:]), dtype))
                writers[name](array.numpy())
            ends.append(ends[-1][-1] + encoded.lengths.cumsum(0).numpy())
            finite = _finite(encoded)
            if wrong is None and not finite.all():
                wrong = run.start + int(finite.int().argmin())
            show(run.stop)
    offsets = np.concatenate(ends)
    with write_rows(directory / OFFSETS, (), "<i8") as write:
        write(offsets)
    return wrong


def _arrays(encoded: Encoded) -> dict[str, Tensor]:
    """By the names of their files, what is written of some items."""
    vectors = {f"vectors_{name}.npy": vector for name, vector in encoded.vectors.items()}
    floats = {VALUES: encoded.sequences[_valid(encoded)], **vectors}
    return {name: array.float() if array.is_floating_point() else array.long() for name, array in floats.items()}


def _finite(encoded: Encoded) -> Tensor:
    """(n,) bool, whether all that is kept of an item is finite."""
    finite = (encoded.sequences.isfinite().all(2) | ~_valid(encoded)).all(1)
    for vector in encoded.vectors.values():
        finite &= vector.isfinite().flatten(1).all(1)
    return finite


def _valid(encoded: Encoded) -> Tensor:
    return torch.arange(encoded.sequences.shape[1]) < encoded.lengths[:, None]


def _warn(directory: Path, item: int, why: str) -> None:
    warnings.warn(f"{directory}: the embedding of item {item} is not finite: {why}", stacklevel=3)
