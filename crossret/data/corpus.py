"""Images and their captions as training and evaluation read them, and a precomputed split read in this way."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.batches import Batch, Part, caption_batches, pad_tokens, read_regions
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.vocabulary import Vocabulary
from crossret.hyperparameters import ModelConfig, ScanConfig

_SAMPLED_IMAGES = 64

ALL = slice(None)


def slices_of(n: int, batch_size: int, items: slice) -> Iterator[slice]:
    """Batches of ``items`` of ``n``, in order; the last may be smaller."""
    begin, end, _ = items.indices(n)
    return (slice(start, min(start + batch_size, end)) for start in range(begin, end, batch_size))


class Corpus(Protocol):
    """Images with captions, read in batches.

    Attributes:
        name: what errors call it.
        vocabulary: the numbering of its words.
        n_regions: regions of an image.
        image_dim: length of a region's feature.
        n_images, n_captions: how many there are.
        image_of_caption: (n_captions,) int64, the image that each caption describes.
    """

    name: str
    vocabulary: Vocabulary
    n_regions: int
    image_dim: int
    n_images: int
    n_captions: int
    image_of_caption: NDArray[np.int64]

    def fingerprint(self) -> str:
        """A digest that tells these images and captions from others, without reading all of them."""

    def training_batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, part: Part = slice
    ) -> Iterator[Batch]:
        """Every caption once with its image, in an order that depends on seed and epoch alone, from batch ``start``.

        Of a batch of n only the rows ``part(n)`` are read; by default all.
        """

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The regions of the images, in order: (b, R, image_dim) float32, and (b, R, 4) float32 x0, y0, x1, y1.

        The boxes are None where the data have none. ``items`` are some images, one after another.
        """

    def caption_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor]]:
        """The captions, in order: (b, W) int64 word numbers, padded, and (b,) int64 lengths; ``items`` are some."""


def check_regions(config: ModelConfig, data: Corpus) -> None:
    """What training and evaluation ask before they begin.

    Raises:
        ValueError: the model cannot read such regions, or would use more of them than there are; names the data.
    """
    if data.image_dim != config.image_dim:
        raise ValueError(
            f"{data.name}: regions have {data.image_dim} features, but the model's image_dim is {config.image_dim}"
        )
    used = config.region_count if isinstance(config, ScanConfig) else None
    if used is not None and used > data.n_regions:
        raise ValueError(
            f"{data.name}: images have {data.n_regions} regions, fewer than the model's region_count {used}"
        )


class PrecomputedCorpus:
    """A split in the precomputed-feature format with its words numbered: a ``Corpus``. Features stay on the disk."""

    def __init__(self, data: PrecomputedDataset, vocabulary: Vocabulary) -> None:
        self.data = data
        self.vocabulary = vocabulary
        self.name = data.name
        self.n_regions = data.n_regions
        self.image_dim = data.image_dim
        self.n_images = data.n_images
        self.n_captions = data.n_captions
        self.image_of_caption = data.image_of_caption

    def fingerprint(self) -> str:
        """As ``Corpus.fingerprint``: of all captions, the features' shape and up to 64 images, evenly spaced."""
        digest = blake2b(repr((self.data.features.shape, self.n_images)).encode(), digest_size=16)
        digest.update("\n".join(self.data.captions).encode())
        images = np.unique(np.linspace(0, self.n_images - 1, _SAMPLED_IMAGES).astype(np.int64))
        for array in (self.data.features, self.data.boxes):
            if array is not None:  # data without boxes keep the digest that they had before there were any
                digest.update(array[self.data.feature_rows[images]].tobytes())
        return digest.hexdigest()

    def training_batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, part: Part = slice
    ) -> Iterator[Batch]:
        """As ``Corpus.training_batches``."""
        batches = caption_batches(
            self.data, self.vocabulary, batch_size, seed=seed, epoch=epoch, shuffle=True, part=part
        )
        return islice(batches, start, None)

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor | None]]:
        """As ``Corpus.image_batches``."""
        for batch in slices_of(self.n_images, batch_size, items):
            yield read_regions(self.data, batch)

    def caption_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor]]:
        """As ``Corpus.caption_batches``."""
        for batch in slices_of(self.n_captions, batch_size, items):
            captions = self.data.captions[batch]
            yield pad_tokens([self.vocabulary.encode(caption) for caption in captions])
