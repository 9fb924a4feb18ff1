"""A split's embeddings as corpora on the disk, which are searched and scored without the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation.finiteness import why_not_finite
from crossret.files.arrays import write_rows
from crossret.files.directories import new_directory
from crossret.files.features import OFFSETS, VALUES
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating
from crossret.progress import Progress
from crossret.search.items import BATCH, EncodedCaptions, EncodedImages
from crossret.search.manifest import CAPTIONS, IMAGES, Manifest
from crossret.search.stored import WHY_OF_MODEL, vectors_file

_WRITTEN = {torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8"}


def encode_split(model: Matcher, corpus: PrecomputedCorpus, output: Path, *, progress: Progress | None = None) -> None:
    """Write what a model makes of a split's images and captions, each side to a directory of its own.

    ``images`` and ``captions`` hold the sequences of ``Encoded`` as ``StoredItems.of_directory`` reads them:
    ``values.npy`` (rows, D) and ``offsets.npy`` (n + 1,) int64. Beside them is what else the model keeps of every item,
    ``vectors_NAME.npy`` (n, …), and ``model.json``, a ``Manifest`` of the model. Numbers are as wide as the model has
    them, float32, or int64; where it keeps an image's regions as they came, these are as wide as in the data. Items are
    encoded and written in batches: memory is bounded, whatever their number. ``output`` is there when it is whole, and
    ``StoredEncoded`` reads it.

    Embeddings that are not finite are written as they are, so that one bad image does not cost all others, and a
    warning names the first.

    Args:
        model: a trained model, on any device; its mode is restored.
        corpus: the split, with the model's vocabulary.
        output: the directory to write, absent or empty; see ``new_directory``.
        progress: as that of ``encode_dataset``.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the model keeps vectors of another shape of some items than of others.
    """
    corpus = corpus.read_by(model.config, progress)
    total = corpus.n_images + corpus.n_captions

    def after(done: int) -> Callable[[int], None]:
        return lambda more: progress(done + more, total) if progress is not None else None

    regions = corpus.data.features.dtype if model.config.keeps_regions else None
    with evaluating(model), new_directory(output) as directory:
        images, captions = EncodedImages(model, corpus), EncodedCaptions(model, corpus)
        wrong_image = _write_side(directory, IMAGES, model, images, after(0), regions)
        wrong_caption = _write_side(directory, CAPTIONS, model, captions, after(corpus.n_images))
    if wrong_image is not None:
        _warn(output / IMAGES, wrong_image, why_not_finite(corpus, wrong_image))
    if wrong_caption is not None:
        _warn(output / CAPTIONS, wrong_caption, WHY_OF_MODEL)


def _write_side(
    output: Path,
    side: str,
    model: Matcher,
    items: EncodedImages | EncodedCaptions,
    show: Callable[[int], None],
    rows: np.dtype[Any] | None = None,
) -> int | None:
    """Write the items of one side, ``rows`` in that dtype where one is given; the first that is not finite, if any."""

    def batches() -> Iterator[Encoded]:
        for run in items.runs(BATCH):
            yield items[run]
            show(run.stop)

    directory = output / side
    directory.mkdir()
    written = write_items(directory, batches(), rows)
    Manifest.of(model, side, written.vectors).write(directory)
    return written.wrong


class Written(NamedTuple):
    """Record of ``write_items``.

    Attributes:
        items, dim: how many, and D of their rows.
        vectors: as those of a ``Manifest``.
        wrong: the first item that is not finite; None where all are.
    """

    items: int
    dim: int
    vectors: dict[str, tuple[int, ...]]
    wrong: int | None


def write_items(directory: Path, batches: Iterable[Encoded], rows: np.dtype[Any] | None = None) -> Written:
    """Write encoded items, one batch after another, as ``encode_split`` does those of a side, without a manifest.

    ``rows`` is the dtype of sequences; by default their own.

    Raises:
        OSError: a file cannot be written. ValueError: there are no items, or of vectors of other shapes.
    """
    wrong = None
    ends = [np.zeros(1, np.int64)]
    shapes: dict[str, tuple[int, ...]] = {}
    n = dim = 0
    with ExitStack() as files:
        writers: dict[str, Callable[[NDArray[np.generic]], None]] = {}
        for batch in batches:
            encoded = batch.cpu()
            arrays = {VALUES: encoded.sequences[_valid(encoded)]}
            arrays |= {vectors_file(name): vector for name, vector in encoded.vectors.items()}
            for name, array in arrays.items():
                if name not in writers:  # a model's vectors are known once it has encoded
                    dtype = _dtype(array) if name != VALUES or rows is None else rows.str
                    writers[name] = files.enter_context(write_rows(directory / name, tuple(array.shape[1:]), dtype))
                writers[name](_writable(array).numpy())
            shapes = {name: tuple(vector.shape[1:]) for name, vector in encoded.vectors.items()}
            ends.append(ends[-1][-1] + encoded.lengths.cumsum(0).numpy())
            finite = _finite(encoded)
            if wrong is None and not finite.all():
                wrong = n + int(finite.int().argmin())
            n, dim = n + len(encoded), encoded.sequences.shape[2]
    if not n:
        raise ValueError(f"{directory}: no items to write")
    with write_rows(directory / OFFSETS, (), "<i8") as write:
        write(np.concatenate(ends))
    return Written(n, dim, shapes, wrong)


def _dtype(array: Tensor) -> str:
    return _WRITTEN.get(array.dtype, "<f4") if array.is_floating_point() else "<i8"


def _writable(array: Tensor) -> Tensor:
    """Numbers in a dtype that NumPy has, none of them changed."""
    return array.float() if array.is_floating_point() and array.dtype not in _WRITTEN else array


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
