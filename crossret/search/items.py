"""The images and captions of a split, encoded as they are asked for: what is searched need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from crossret.data.batches import pad_tokens, read_regions
from crossret.data.corpus import PrecomputedCorpus
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret_kernels.item_blocks import release_pages

BATCH = 128  # items encoded at a time


@contextmanager
def evaluating(model: Matcher) -> Iterator[None]:
    """The model in evaluation mode and without gradients; its mode is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def encode_captions(model: Matcher, tokens: list[list[int]]) -> Encoded:
    """Captions by the numbers of their words, kept together."""
    device = next(model.parameters()).device
    parts = []
    for start in range(0, len(tokens), BATCH):
        padded, lengths = pad_tokens(tokens[start : start + BATCH])
        parts.append(model.encode_captions(padded.to(device), lengths.to(device)))
    return Encoded.concat(parts)


class EncodedImages:
    """The images of a corpus, encoded as they are asked for."""

    def __init__(self, model: Matcher, corpus: PrecomputedCorpus) -> None:
        self.model = model
        self.data = corpus.data
        self.device = next(model.parameters()).device

    def __len__(self) -> int:
        return self.data.n_images

    def runs(self, most: int) -> list[slice]:
        return _runs(len(self), most)

    def __getitem__(self, run: slice) -> Encoded:
        regions, boxes = read_regions(self.data, run)
        for array in (self.data.features, self.data.boxes):
            if array is not None:
                release_pages(array)
        return self.model.encode_images(regions.to(self.device), boxes=None if boxes is None else boxes.to(self.device))


class EncodedCaptions:
    """The captions of a corpus, encoded as they are asked for."""

    def __init__(self, model: Matcher, corpus: PrecomputedCorpus) -> None:
        self.model = model
        self.corpus = corpus

    def __len__(self) -> int:
        return self.corpus.n_captions

    def runs(self, most: int) -> list[slice]:
        return _runs(len(self), most)

    def __getitem__(self, run: slice) -> Encoded:
        captions = self.corpus.data.captions[run]
        return encode_captions(self.model, [self.corpus.vocabulary.encode(caption) for caption in captions])


def _runs(n: int, most: int) -> list[slice]:
    step = min(most, BATCH)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
