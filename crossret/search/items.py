"""The images and captions of a split, encoded as they are asked for: what is searched need not fit in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from crossret.data.corpus import PrecomputedCorpus
from crossret.data.vocabulary import Vocabulary
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret.models.texts import new_captions
from crossret_kernels.extending import Chosen, ItemBlocks, release_pages

BATCH = 128  # items encoded at a time


def encode_texts(model: Matcher, captions: Sequence[str], vocabulary: Vocabulary | None) -> Encoded:
    """Captions by a model of this vocabulary, kept together.

    Raises:
        ValueError: there are none, or one is not one for ``tokenize``; or as ``new_captions``.
    """
    read = new_captions(model, captions, vocabulary)
    device = next(model.parameters()).device
    parts = []
    for run in _runs(len(captions), BATCH):
        tokens, lengths = read.padded(range(len(captions))[run])
        parts.append(model.encode_captions(tokens.to(device), lengths.to(device)))
    return Encoded.concat(parts)


def pick(images: ItemBlocks[Encoded], numbers: Sequence[int]) -> Encoded:
    """Images of a corpus by their numbers, in any order, kept together.

    Raises:
        ValueError: there are none, or one is not in the corpus.
    """
    for number in numbers:
        if not 0 <= number < len(images):
            raise ValueError(f"image {number}: the corpus has images 0 to {len(images) - 1}")
    return Encoded.concat([images[slice(number, number + 1)] for number in numbers])


class _InBatches(ABC):
    """Items that are encoded as they are asked for, some at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, items: slice | Chosen) -> Encoded: ...

    def runs(self, most: int) -> list[slice]:
        return _runs(len(self), min(most, BATCH))

    def chosen(self, items: Chosen) -> Iterator[tuple[slice, Encoded]]:
        for run in _runs(len(items), BATCH):
            yield run, self[items[run]]


class EncodedImages(_InBatches):
    """The images of a corpus, encoded as they are asked for."""

    def __init__(self, model: Matcher, corpus: PrecomputedCorpus) -> None:
        self.model = model
        self.data = corpus.data
        self.corpus = corpus.read_by(model.config)
        self.device = next(model.parameters()).device

    def __len__(self) -> int:
        return self.data.n_images

    def __getitem__(self, run: slice | Chosen) -> Encoded:
        regions = self.corpus.regions(run)
        for array in (self.data.features, self.data.boxes):
            if array is not None:
                release_pages(array)
        return self.model.encode_images(**regions.on(self.device))


class EncodedCaptions(_InBatches):
    """The captions of a corpus, encoded as they are asked for."""

    def __init__(self, model: Matcher, corpus: PrecomputedCorpus) -> None:
        self.model = model
        self.corpus = corpus

    def __len__(self) -> int:
        return self.corpus.n_captions

    def __getitem__(self, run: slice | Chosen) -> Encoded:
        tokens, lengths = self.corpus.captions(run)
        device = next(self.model.parameters()).device
        return self.model.encode_captions(tokens.to(device), lengths.to(device))


class KeptItems(_InBatches):
    """Encoded items in memory, of which some are scored at a time."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded

    def __len__(self) -> int:
        return len(self.encoded)

    def runs(self, most: int) -> list[slice]:
        return _runs(len(self), most)

    def __getitem__(self, run: slice | Chosen) -> Encoded:
        return self.encoded[run if isinstance(run, slice) else torch.from_numpy(run).to(self.encoded.lengths.device)]


def _runs(n: int, most: int) -> list[slice]:
    return [slice(start, min(start + most, n)) for start in range(0, n, most)]
