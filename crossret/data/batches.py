"""Batches of captions with their images, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.gathering import empty, gathered, pinned, pinning
from crossret.data.held import HeldRows
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.prepared import PictureFiles, Prepared
from crossret.data.vocabulary import PAD, Vocabulary
from crossret.files.features import StoredItems


class Regions(NamedTuple):
    """The regions of some images and what is known of them.

    Attributes:
        features: (n, k, d) float32, or float16 until they are ``on`` a device, where they were read for a GPU; where
            that holds all of them ``HeldRows``; of pictures ``Prepared``, n for a model's encoder.
        boxes: (n, k, 4) float32 x0, y0, x1, y1; None where the data have none.
        clusters: (n, k) int64, their clusters, where the model that reads them takes such; see ``corpus_for``.
        lengths: (n,) int64, how many regions each image has, behind which all is zero; None: k each.
    """

    features: Any
    boxes: Tensor | None = None
    clusters: Tensor | None = None
    lengths: Tensor | None = None

    def on(self, device: torch.device) -> dict[str, Any]:
        """The arguments of ``Matcher.encode_images`` on a device; without those that are None."""
        there = {name: part.to(device, non_blocking=True) for name, part in self._asdict().items() if part is not None}
        if isinstance(there["features"], Tensor):
            there["features"] = there["features"].float()
        return there


@dataclass(frozen=True)
class Batch:
    """Some captions, each with the regions of the image that it describes (an image can be there more than once).

    Attributes:
        regions: (b, k, d), as features of ``Regions``.
        boxes: (b, k, 4) float32 x0, y0, x1, y1 of the regions; None where the data have none.
        tokens: (b, W) int64 word numbers, <start> and <end> included, padded with 0 to the longest caption; of data
            without a vocabulary (b, W, text_dim) float32, tokens of an encoder of texts, padded likewise, or
            ``Prepared``, b for a model's encoder of texts.
        lengths: (b,) int64, each caption's number of words or tokens.
        image_ids, caption_ids: (b,) int64, their places in the data set.
        clusters, region_lengths: (b, k) and (b,) int64, as clusters and lengths of ``Regions``.
    """

    regions: Any
    boxes: Tensor | None
    tokens: Any
    lengths: Tensor
    image_ids: Tensor
    caption_ids: Tensor
    clusters: Tensor | None = None
    region_lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.caption_ids)

    def pinned(self) -> Batch:
        """A copy in memory from which a GPU copies while the CPU goes on."""
        there = {
            name: part for name, part in self.fields().items() if not (isinstance(part, Tensor) and part.is_pinned())
        }
        return replace(self, **{name: part.pin_memory() for name, part in there.items()})

    def fields(self) -> dict[str, Any]:
        """Parts by name, as ``Model.forward`` takes them; without those that are None."""
        return {name: part for name, part in vars(self).items() if part is not None}


class ReadCaptions(Protocol):
    """Captions as a model reads them.

    Attributes:
        dim: numbers of a token; None where they are words.
    """

    @property
    def dim(self) -> int | None: ...

    def padded(self, captions: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Some captions by their numbers, as ``tokens`` and ``lengths`` of a ``Batch``."""

    def spans(self, caption: int) -> NDArray[np.int32] | None:
        """(W, 2), the characters of the word that each token of a caption is of; None of words, or where not known."""


class TextReader(Protocol):
    """A model's encoder of texts: prepares a text, which has ``spans`` as ``ReadCaptions.spans``, for the model."""

    name: str
    dim: int

    def prepare(self, text: str) -> Any: ...


class NumberedCaptions:
    """Captions as the numbers of their words, each of them tokenized when it is first asked for and never again."""

    dim = None

    def __init__(self, captions: Sequence[str], vocabulary: Vocabulary) -> None:
        self._captions = captions
        self._vocabulary = vocabulary
        self._numbers: list[NDArray[np.int32] | None] = [None] * len(captions)

    def padded(self, captions: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Some captions, as ``pad_tokens`` returns them."""
        return pad_tokens([self._of(caption) for caption in captions])

    def spans(self, caption: int) -> None:
        """None: of which words the numbers are is known."""

    def _of(self, caption: int) -> NDArray[np.int32]:
        found = self._numbers[caption]
        if found is None:
            found = np.array(self._vocabulary.encode(self._captions[caption]), np.int32)
            self._numbers[caption] = found
        return found


class StoredTokens:
    """Captions as the tokens that an encoder of texts made of them, read from the disk when they are asked for.

    Args:
        stored: the tokens, an item a caption.
        spans: (rows, 2), the words of the packed tokens; None where they are not known.
    """

    def __init__(self, stored: StoredItems, spans: NDArray[np.int32] | None = None) -> None:
        self._stored = stored
        self._spans = spans
        self.dim = stored.dim

    def padded(self, captions: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Tokens of some captions (b, W, text_dim) float32, zero behind their lengths (b,)."""
        parts = [self._stored.rows(caption) for caption in captions]
        lengths = [len(part) for part in parts]
        padded = empty((len(parts), max(lengths), self._stored.dim), np.dtype(np.float32)).zero_()
        for row, part in zip(padded.numpy(), parts, strict=True):
            row[: len(part)] = part
        return padded, torch.tensor(lengths, dtype=torch.int64)

    def spans(self, caption: int) -> NDArray[np.int32] | None:
        """Spans of a caption's words: see ``ReadCaptions.spans``."""
        offsets = self._stored.offsets
        return None if self._spans is None or offsets is None else self._spans[offsets[caption] : offsets[caption + 1]]


class PreparedCaptions:
    """Captions as an encoder of texts reads them, which is to make their tokens: prepared whenever they are asked for.

    Args:
        captions: the texts.
        reader: the encoder.
    """

    def __init__(self, captions: Sequence[str], reader: TextReader) -> None:
        self._captions = captions
        self._reader = reader
        self.dim = reader.dim

    def padded(self, captions: Iterable[int]) -> tuple[Any, Tensor]:
        """Some captions, ``Prepared``, and how many tokens will be made of each (b,)."""
        texts = [self._reader.prepare(self._captions[caption]) for caption in captions]
        return Prepared(texts), torch.tensor([len(text.spans) for text in texts], dtype=torch.int64)

    def spans(self, caption: int) -> NDArray[np.int32] | None:
        """Spans of a caption's tokens: see ``ReadCaptions.spans``."""
        return self._reader.prepare(self._captions[caption]).spans


def read_texts(
    captions: Sequence[str], vocabulary: Vocabulary | None, reader: TextReader | None
) -> ReadCaptions | None:
    """Texts as a model with this encoder, or else of this vocabulary, reads them; None of one that has neither."""
    if reader is not None:
        return PreparedCaptions(captions, reader)
    return None if vocabulary is None else NumberedCaptions(captions, vocabulary)


Part = Callable[[int], slice]
"""Which items of a batch of so many are wanted; not all, and at least one, where several processes share a batch."""


def caption_batches(
    data: PrecomputedDataset,
    read: ReadCaptions,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool,
    part: Part = slice,
    clusters: NDArray[np.int32] | None = None,
) -> Iterator[Batch]:
    """Go once through the captions, as SCAN trains: every caption is one entry, with its image's regions.

    The order is a function of ``seed`` and ``epoch`` only, so an interrupted epoch is resumed bit for bit by skipping
    the batches already seen. The last batch may be smaller. Of each only ``part`` is read; by default all of it.
    ``clusters`` (n_images, k) are those of the images' regions.

    Raises:
        ValueError: ``batch_size`` is less than 1, or ``seed`` or ``epoch`` is negative.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if seed < 0 or epoch < 0:
        raise ValueError(f"seed and epoch must not be negative, got {seed} and {epoch}")
    order = np.random.default_rng([seed, epoch]).permutation(data.n_captions) if shuffle else np.arange(data.n_captions)
    batches = (order[start : start + batch_size] for start in range(0, data.n_captions, batch_size))
    return (read_batch(data, read, batch[part(len(batch))], clusters) for batch in batches)


def prefetched(batches: Iterator[Batch], *, pin: bool = False) -> Generator[Batch]:
    """Batches in order, each read by a thread of its own while the one before it is used.

    ``pin`` is for batches that go to a GPU. What reading raises, comes where the batch would have.
    """

    def read() -> Batch | None:
        with pinned(pin):
            batch = next(batches, None)
        return batch if batch is None or not pin else batch.pinned()

    with ThreadPoolExecutor(1, thread_name_prefix="crossret-batches") as pool:
        following = pool.submit(read)
        while (batch := following.result()) is not None:
            following = pool.submit(read)
            yield batch


def read_regions(
    data: PrecomputedDataset, images: NDArray[np.int64] | slice, clusters: NDArray[np.int32] | None = None
) -> Regions:
    """The regions of some images, in memory, with their rows of ``clusters`` (n_images, k)."""
    rows = data.feature_rows[images]
    pictures: Any = data.features
    if isinstance(pictures, PictureFiles):
        return Regions(pictures[rows])
    lengths = None if data.lengths is None else data.lengths[rows]
    if data.held is not None:
        regions: Any = HeldRows(data.held, torch.from_numpy(np.arange(data.n_images)[images]))
    else:
        features = read_rows(data.features, rows, lengths)
        regions = features if pinning() else features.float()  # a GPU widens them itself
    boxes = None if data.boxes is None else read_rows(data.boxes, rows, lengths)
    numbers = None if clusters is None else torch.from_numpy(np.asarray(clusters[images], np.int64))
    return Regions(regions, boxes, numbers, None if lengths is None else torch.from_numpy(lengths))


def region_blocks(data: PrecomputedDataset, size: int) -> Iterator[Regions]:
    """The regions of all images, in order, so many at a time as take about ``size`` bytes."""
    block = max(1, size // (4 * data.n_regions * data.image_dim))
    return (read_regions(data, slice(begin, begin + block)) for begin in range(0, data.n_images, block))


def read_rows(array: Any, rows: NDArray[np.int64], lengths: NDArray[np.int64] | None) -> Tensor:
    """Rows in memory of their own; what lies behind a length is not read, and zero."""
    if isinstance(array, np.ndarray):
        return gathered(array, rows, lengths)
    return torch.from_numpy(np.asarray(array[rows]))  # ``ArrowRegions`` pads by itself


def pad_tokens(token_lists: Sequence[Sequence[int] | NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """Captions of different lengths as one (b, W) int64 tensor padded with 0, and their (b,) int64 lengths."""
    lengths = [len(tokens) for tokens in token_lists]
    padded = np.full((len(lengths), max(lengths)), PAD, np.int64)
    for row, tokens, length in zip(padded, token_lists, lengths, strict=True):
        row[:length] = tokens
    return torch.from_numpy(padded), torch.tensor(lengths, dtype=torch.int64)


def check_lengths(lengths: Tensor, longest: int) -> None:
    """Raise a TypeError where lengths are not int64, a ValueError that names the first that is not in 1..longest."""
    if lengths.dtype != torch.int64:
        raise TypeError(f"lengths must be int64, got {lengths.dtype}")
    wrong = (lengths < 1) | (lengths > longest)
    if bool(wrong.any()):
        item = int(wrong.nonzero()[0, 0])
        raise ValueError(f"lengths[{item}] must be in 1..{longest}, got {int(lengths[item])}")


def read_batch(
    data: PrecomputedDataset,
    read: ReadCaptions,
    caption_ids: NDArray[np.int64],
    clusters: NDArray[np.int32] | None = None,
) -> Batch:
    """A batch of these captions (b,), each with its image."""
    image_ids = data.image_of_caption[caption_ids]
    tokens, lengths = read.padded(caption_ids.tolist())
    regions = read_regions(data, image_ids, clusters)
    numbers = torch.from_numpy(image_ids), torch.from_numpy(caption_ids)
    return Batch(regions.features, regions.boxes, tokens, lengths, *numbers, regions.clusters, regions.lengths)
