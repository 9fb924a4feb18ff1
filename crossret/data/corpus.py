"""Images and their captions as training and evaluation read them, and a precomputed split read in this way."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.batches import (
    Batch,
    Part,
    ReadCaptions,
    Regions,
    StoredTokens,
    TextReader,
    caption_batches,
    read_batch,
    read_regions,
    read_rows,
    read_texts,
)
from crossret.data.cluster_cache import Clusters, clusters_of
from crossret.data.held import held_on
from crossret.data.precomputed import PrecomputedDataset, check_words
from crossret.data.prepared import PictureFiles
from crossret.data.vocabulary import Vocabulary
from crossret.hyperparameters import HanConfig, ModelConfig, SmanConfig
from crossret.progress import Progress
from crossret_kernels.extending import release_pages

_SAMPLED = 64

ALL = slice(None)


def slices_of(n: int, batch_size: int, items: slice) -> Iterator[slice]:
    """Batches of ``items`` of ``n``, in order; the last may be smaller."""
    begin, end, _ = items.indices(n)
    return (slice(start, min(start + batch_size, end)) for start in range(begin, end, batch_size))


class Corpus(Protocol):
    """Images with captions, read in batches.

    Attributes:
        name: its name in errors.
        vocabulary: the numbering of its words; None where captions are tokens of an encoder of texts.
        n_regions: regions of an image, the most where numbers differ.
        image_dim: length of a region's feature.
        n_images, n_captions: how many there are.
        image_of_caption: (n_captions,) int64, the image that each caption describes.
        has_boxes, boxes_name: whether there are boxes of the regions, and what errors call them. Asked of for models
            that may read them.
    """

    name: str
    vocabulary: Vocabulary | None
    n_regions: int
    image_dim: int
    n_images: int
    n_captions: int
    image_of_caption: NDArray[np.int64]
    has_boxes: bool
    boxes_name: str

    def fingerprint(self) -> str:
        """A digest that tells these images and captions from others, without reading all of them."""

    def training_batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, part: Part = slice
    ) -> Iterator[Batch]:
        """Every caption once with its image, in an order that depends on seed and epoch alone, from batch ``start``.

        Only the rows ``part(n)`` of a batch of n are read; by default all.
        """

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[Regions]:
        """The regions of the images, in order; ``items`` are some images, one after another."""

    def caption_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor]]:
        """The captions, in order: ``tokens`` and ``lengths`` of a ``Batch``; ``items`` are some."""


def check_readable(config: ModelConfig, data: Corpus) -> None:
    """Check that a model can read a split, before training or evaluation begins.

    Raises:
        ValueError: the model cannot read such regions, would use more of them than there are, or reads them in the
            order of boxes that there are not; names the data. A caption has more words than it reads, or tokens are of
            another size; names the line, or the tokens.
    """
    if data.image_dim != config.image_dim:
        raise ValueError(
            f"{data.name}: regions have {data.image_dim} features, but the model's image_dim is {config.image_dim}"
        )
    name, needed = config.needed_regions()
    if needed > data.n_regions:
        raise ValueError(f"{data.name}: images have {data.n_regions} regions, fewer than the model's {name} {needed}")
    if may_read_boxes(config) and config.spatial_order and not data.has_boxes:
        raise ValueError(
            f"{data.boxes_name}: no such file, but the model was made to read regions in the order of their boxes"
        )
    if isinstance(data, PrecomputedCorpus):
        check_words(data.data.captions, config, f"{data.data.captions_name}, line")
        if data.text_dim is not None:
            data.check_tokens(config)


def check_boxes_agree(config: ModelConfig, first: Corpus, *others: Corpus) -> None:
    """Raise a ValueError that names a file of boxes that some of the data of one model have and others have not."""
    for other in others if may_read_boxes(config) else ():
        if other.has_boxes != first.has_boxes:
            there, missing = (first, other) if first.has_boxes else (other, first)
            raise ValueError(
                f"{missing.boxes_name}: no such file, but there is {there.boxes_name}: {config.kind} reads regions in "
                "the order of their boxes, which all splits must have or none"
            )


def may_read_boxes(config: ModelConfig) -> TypeGuard[SmanConfig]:
    """Whether it matters to a model in which order regions come, which boxes decide."""
    return isinstance(config, SmanConfig) and config.location


def fields_of_data(config: type[ModelConfig], data: PrecomputedCorpus) -> dict[str, Any]:
    """The hyper-parameters of a model that its training data decide, by name."""
    words = 0 if data.vocabulary is None else len(data.vocabulary)
    fields = {"image_dim": data.image_dim, "vocabulary_size": words, "text_dim": data.text_dim}
    return {**fields, "spatial_order": data.has_boxes} if config is SmanConfig else fields


def have_tokens(*splits: PrecomputedDataset) -> bool:
    """Whether models are trained on tokens of the captions of these splits where nobody says what on."""
    return all(split.has_words for split in splits)


def corpus_for(config: ModelConfig, data: Corpus, progress: Progress | None = None) -> Corpus:
    """Images and captions as a model of these hyper-parameters reads them: ``PrecomputedCorpus.read_by``."""
    return data.read_by(config, progress) if isinstance(data, PrecomputedCorpus) else data


class PrecomputedCorpus:
    """A split in the precomputed-feature format with its words numbered: a ``Corpus``. Features stay on the disk.

    Without a vocabulary its captions are the tokens that it has of them, which stay there, too, or texts for a model's
    encoder.

    Attributes:
        data, vocabulary: the split, and the numbering of its words.
        reader: of texts, where it reads these.
        text_dim: numbers of a token of a caption; None where they are words.
        clusters: the clusters of the images' regions that go with them, if any; see ``read_by``.
    """

    clusters: Clusters | None = None

    def __init__(
        self, data: PrecomputedDataset, vocabulary: Vocabulary | None, reader: TextReader | None = None
    ) -> None:
        """Raises as ``PrecomputedDataset.words`` where there is neither a vocabulary nor a reader."""
        self.reader = reader
        self.data = data
        self.vocabulary = vocabulary
        self.name = data.name
        self.n_regions = data.n_regions
        self.image_dim = data.image_dim
        self.n_images = data.n_images
        self.n_captions = data.n_captions
        self.image_of_caption = data.image_of_caption
        self.has_boxes = data.boxes is not None
        self.boxes_name = data.boxes_name
        read = read_texts(data.captions, vocabulary, reader)
        self._read: ReadCaptions = read or StoredTokens(data.words, data.word_spans)
        self.text_dim = self._read.dim

    def read_by(self, config: ModelConfig, progress: Progress | None = None) -> PrecomputedCorpus:
        """This split as a model of these hyper-parameters reads it.

        Where HAN clusters regions, they are clustered once and for all, not whenever an image is encoded.

        Args:
            progress: as that of ``clusters_of``; raises as it does.
        """
        count = config.clusters if isinstance(config, HanConfig) else None
        if count == (None if self.clusters is None else self.clusters.number):
            return self
        corpus = copy.copy(self)
        corpus.clusters = None if count is None else clusters_of(self.data, self.fingerprint(), count, progress)
        return corpus

    def held_on(self, device: torch.device, progress: Progress | None = None) -> PrecomputedCorpus:
        """This split with its features on a device, as ``held_on`` of ``crossret.data.held``."""
        corpus = copy.copy(self)
        corpus.data = held_on(self.data, device, progress)
        return corpus

    @property
    def bytes_held(self) -> int:
        """Bytes of its features on a device; 0 where they are on none."""
        return 0 if self.data.held is None else self.data.held.nbytes

    def check_tokens(self, config: ModelConfig) -> None:
        """Raise a ValueError where a model cannot read the tokens of the captions; names them."""
        if self.text_dim != config.text_dim:
            name = self.data.words_name if self.reader is None else self.reader.name
            raise ValueError(
                f"{name}: tokens of captions have {self.text_dim} numbers, but the model's text_dim is "
                f"{config.text_dim}"
            )
        if not self.has_tokens:
            return
        most = config.most_words
        counts = self.data.words.counts()[: self.n_captions]
        if (config.max_words is None or config.max_words > most) and counts.max() > most:
            raise ValueError(
                f"{self.data.words_name}: item {counts.argmax()} has {counts.max():,} tokens, more than the {most:,} "
                "that the model can read"
            )

    @property
    def has_tokens(self) -> bool:
        """Whether its captions are tokens that are stored."""
        return isinstance(self._read, StoredTokens)

    def spans(self, caption: int) -> NDArray[np.int32] | None:
        """(W, 2) int32, of each token of a caption the characters of its word; None where they are not known, and of
        words.
        """
        return self._read.spans(caption)

    def captions(self, captions: NDArray[np.int64] | slice) -> tuple[Tensor, Tensor]:
        """Some captions: ``tokens`` and ``lengths`` of a ``Batch``."""
        read = self._read.padded(np.arange(self.n_captions)[captions].tolist())
        if self.has_tokens:
            release_pages(self.data.words.values)
        return read

    def regions(self, images: NDArray[np.int64] | slice) -> Regions:
        """The regions of some images, in memory."""
        return read_regions(self.data, images, None if self.clusters is None else self.clusters.of_regions)

    def fingerprint(self) -> str:
        """Hash of all captions, the features' shape and up to 64 images, evenly spaced: see ``Corpus.fingerprint``.

        Padding behind an image's regions does not count, nor which image a caption is of where all have as many.
        """
        digest = blake2b(repr((self.data.features.shape, self.n_images)).encode(), digest_size=16)
        digest.update("\n".join(self.data.captions).encode())
        if self.has_tokens:
            digest.update(self._digest_of_tokens())
        images = np.unique(np.linspace(0, self.n_images - 1, _SAMPLED).astype(np.int64))
        rows, lengths = self.data.feature_rows[images], self.data.lengths
        pictures: Any = self.data.features
        if isinstance(pictures, PictureFiles):
            digest.update(pictures.digest(rows))
            return digest.hexdigest()
        for array in (self.data.features, self.data.boxes):
            if array is not None:  # data without boxes keep the digest that they had before there were any
                digest.update(read_rows(array, rows, None if lengths is None else lengths[rows]).numpy().tobytes())
        if lengths is not None:
            digest.update(lengths.tobytes())
        if (self.image_of_caption != np.arange(self.n_captions) * self.n_images // self.n_captions).any():
            digest.update(self.image_of_caption.tobytes())
        return digest.hexdigest()

    def _digest_of_tokens(self) -> bytes:
        """Counts of every caption's tokens, and the tokens of up to 64 captions, evenly spaced, as bytes."""
        sampled = np.unique(np.linspace(0, self.n_captions - 1, _SAMPLED).astype(np.int64))
        tokens, _ = self.captions(sampled)
        return self.data.words.counts()[: self.n_captions].tobytes() + tokens.numpy().tobytes()

    def training_batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, part: Part = slice
    ) -> Iterator[Batch]:
        """Batches of an epoch: see ``Corpus.training_batches``."""
        batches = caption_batches(
            self.data,
            self._read,
            batch_size,
            seed=seed,
            epoch=epoch,
            shuffle=True,
            part=part,
            clusters=None if self.clusters is None else self.clusters.of_regions,
        )
        return islice(batches, start, None)

    def batch(self, captions: Sequence[int]) -> Batch:
        """Some captions with their images, by their places: the ``collate_fn`` of a DataLoader over
        ``range(corpus.n_captions)``.
        """
        clusters = None if self.clusters is None else self.clusters.of_regions
        return read_batch(self.data, self._read, np.asarray(captions, np.int64), clusters)

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[Regions]:
        """Regions of the images, in order: see ``Corpus.image_batches``."""
        for batch in slices_of(self.n_images, batch_size, items):
            yield self.regions(batch)
            release_pages(self.data.features)

    def caption_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor]]:
        """Captions, in order: see ``Corpus.caption_batches``."""
        for batch in slices_of(self.n_captions, batch_size, items):
            yield self.captions(batch)
