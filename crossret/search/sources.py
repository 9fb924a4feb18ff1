"""Sources that a model searches: a split that it encodes as it goes, or what it encoded before, by the same names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation.finiteness import why_not_finite
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating
from crossret.search.items import EncodedCaptions, EncodedImages, pick
from crossret.search.manifest import CAPTIONS, IMAGES
from crossret.search.matching import EncodedSide
from crossret.search.stored import StoredEncoded

OTHER = {IMAGES: CAPTIONS, CAPTIONS: IMAGES}


class Source(Protocol):
    """Images and captions, of which either may be searched for the other; sides are "images" and "captions"."""

    def side(self, side: str) -> EncodedSide:
        """All of one side, to be scored."""

    def picked(self, numbers: list[int]) -> Encoded:
        """Some images by their numbers; raises a ValueError where there are none, or not of this number."""

    def describe(self, side: str) -> Callable[[int], dict[str, Any]]:
        """Description of an item of a side that was found, beside its number."""

    def why_not_finite(self, side: str, item: int) -> str | None:
        """Why a score of an item is no finite number, if the item is why."""


class SplitSource:
    """A split, whose items are encoded as they are scored."""

    def __init__(self, model: Matcher, corpus: PrecomputedCorpus) -> None:
        self.model = model
        self.corpus = corpus

    def side(self, side: str) -> EncodedSide:
        return (EncodedImages if side == IMAGES else EncodedCaptions)(self.model, self.corpus)

    def picked(self, numbers: list[int]) -> Encoded:
        with evaluating(self.model):
            return pick(EncodedImages(self.model, self.corpus), numbers)

    def describe(self, side: str) -> Callable[[int], dict[str, Any]]:
        texts, owner, ids = self.corpus.data.captions, self.corpus.image_of_caption, self.corpus.data.ids
        counts = np.bincount(owner, minlength=self.corpus.n_images)
        captions = np.split(np.argsort(owner, kind="stable"), counts.cumsum())

        def named(image: int) -> dict[str, str]:
            return {} if ids is None else {"id": ids[image]}

        if side == IMAGES:
            return lambda item: {**named(item), "captions": [texts[own] for own in captions[item]]}
        return lambda item: {"caption": texts[item], "image": int(owner[item]), **named(int(owner[item]))}

    def why_not_finite(self, side: str, item: int) -> str | None:
        return why_not_finite(self.corpus, item) if side == IMAGES else None


class EncodedSource:
    """Split that `encode` wrote: the directory of one side, or that of both."""

    def __init__(self, model: Matcher, directory: Path) -> None:
        self.model = model
        self.directory = directory

    def side(self, side: str) -> StoredEncoded:
        return StoredEncoded.of_directory(self.directory, side)

    def picked(self, numbers: list[int]) -> Encoded:
        images = self.side(IMAGES)
        images.check(self.model)
        return pick(images.items(next(self.model.parameters()).device), numbers)

    def describe(self, side: str) -> Callable[[int], dict[str, Any]]:
        return lambda item: {}

    def why_not_finite(self, side: str, item: int) -> str | None:
        return self.side(side).why_not_finite(item)
