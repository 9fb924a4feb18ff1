"""Images and captions in memory: what trains, evaluates and is searched as a split on the disk does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from crossret.data.arrow import ArrowRegions
from crossret.data.batches import TextReader
from crossret.data.boxes import check_boxes
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.owners import alike
from crossret.data.precomputed import PrecomputedDataset, check_caption
from crossret.data.vocabulary import Vocabulary
from crossret.files.features import StoredItems
from crossret.hyperparameters import ModelConfig
from crossret.progress import Progress


class InMemoryCorpus(PrecomputedCorpus):
    """Images with captions in memory: a ``Corpus``, for ``train``, ``evaluate`` and ``search``.

    Args:
        features: (n_images, k, d) region features, tensor or array of floating point, d numbers a region.
        captions: the captions.
        image_of_caption: (n_captions,) integers, the image that each caption describes. None: the captions of an image
            follow each other, as many for each.
        vocabulary: the numbering of the words, for instance the training corpus'; None is ``Vocabulary.build`` of
            these captions, but where ``tokens`` or ``reader`` are given.
        tokens: (W_i, text_dim) floating point of each caption, from an encoder of texts, in the place of words.
        reader: the encoder of texts of a model that reads captions themselves.
        boxes: (n_images, k, 4) x0, y0, x1, y1 of the regions, for models that read them.
        lengths: (n_images,) integers in 1..k, the regions of each image, behind which anything may be. None: all k.
        name: the corpus' name in errors.

    Raises:
        TypeError: features or tokens are no floating-point numbers. ValueError: shapes do not agree, or a caption is
            none, or names an image that is not there; names it.
    """

    def __init__(
        self,
        features: Tensor | NDArray[Any] | ArrowRegions,
        captions: Sequence[str],
        image_of_caption: ArrayLike | Tensor | None = None,
        *,
        vocabulary: Vocabulary | None = None,
        boxes: Tensor | NDArray[Any] | ArrowRegions | None = None,
        lengths: ArrayLike | Tensor | None = None,
        tokens: Sequence[Tensor | NDArray[Any]] | None = None,
        reader: TextReader | None = None,
        name: str = "corpus",
    ) -> None:
        data = _InMemory(features, captions, image_of_caption, boxes, lengths, name)
        if tokens is not None:
            data.words_name, vocabulary = f"{name}: tokens", None
            data.words = _packed(tokens, data.n_captions, data.words_name)
        elif vocabulary is None and reader is None:
            vocabulary = Vocabulary.build(data.captions)
        super().__init__(data, vocabulary, reader)

    def read_by(self, config: ModelConfig, progress: Progress | None = None) -> PrecomputedCorpus:
        """This split as it is: regions that a model clusters are clustered as they are encoded."""
        return self


class _InMemory(PrecomputedDataset):
    """A split without files."""

    def __init__(
        self,
        features: Any,
        captions: Sequence[str],
        image_of_caption: Any,
        boxes: Any,
        lengths: Any,
        name: str,
    ) -> None:
        self.name = name
        self.features = _array(features, f"{name}: features", 3)
        self.n_images, self.n_regions, self.image_dim = self.features.shape
        if 0 in self.features.shape:
            raise ValueError(f"{name}: features have shape {self.features.shape}, which holds nothing")
        self.captions, self.captions_name = list(captions), f"{name}: captions"
        if not self.captions:
            raise ValueError(f"{name}: captions: there are none")
        for number, caption in enumerate(self.captions, start=1):
            if not isinstance(caption, str):
                raise TypeError(f"{name}: captions, {number}: must be a text, not {type(caption).__name__}")
            check_caption(caption, f"{name}: captions, {number}")
        self.n_captions = len(self.captions)
        self.image_of_caption = self._images(image_of_caption)
        self.feature_rows = np.arange(self.n_images, dtype=np.int64)
        if lengths is not None:
            self.lengths = self._integers("lengths", lengths, self.n_images, 1, self.n_regions)
        self.boxes, self.boxes_name = None, f"{name}: boxes"
        if boxes is not None:
            self.boxes = _array(boxes, self.boxes_name, 3, (np.float32,))
            if self.boxes.shape != (*self.features.shape[:2], 4):
                raise ValueError(
                    f"{self.boxes_name} have shape {self.boxes.shape}, not {(*self.features.shape[:2], 4)}"
                )
            check_boxes(self.boxes, self.boxes_name, self.lengths)
        self.stored = StoredItems(Path(name), self.features, self.lengths)

    def _images(self, given: Any) -> NDArray[np.int64]:
        if given is not None:
            return self._integers("image_of_caption", given, self.n_captions, 0, self.n_images - 1)
        if self.n_captions % self.n_images:
            raise ValueError(
                f"{self.name}: {self.n_captions} captions of {self.n_images} images, which are not as many for each: "
                "pass image_of_caption"
            )
        return alike(self.n_images, self.n_captions)

    def _integers(self, what: str, given: Any, n: int, least: int, most: int) -> NDArray[np.int64]:
        values = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
        if values.dtype.kind not in "iu" or values.shape != (n,):
            raise ValueError(f"{self.name}: {what} must be {n} integers")
        wrong = np.flatnonzero((values < least) | (values > most))
        if len(wrong):
            where = int(wrong[0])
            raise ValueError(f"{self.name}: {what}[{where}] must be in {least}..{most}, got {values[where]}")
        return values.astype(np.int64)


def _packed(tokens: Sequence[Any], captions: int, what: str) -> StoredItems:
    """Stored items of arrays of tokens, one a caption."""
    parts = [_array(part, f"{what}[{caption}]", 2) for caption, part in enumerate(tokens)]
    if len(parts) != captions:
        raise ValueError(f"{what}: {len(parts)} arrays of {captions} captions")
    for caption, part in enumerate(parts):
        if not part.size or part.shape[1] != parts[0].shape[1]:
            raise ValueError(f"{what}[{caption}] must have shape (W, {parts[0].shape[1]}), got {part.shape}")
    return StoredItems(Path(what), np.concatenate(parts), offsets=np.cumsum([0, *map(len, parts)]))


def _array(values: Any, what: str, dims: int, dtypes: Sequence[type] = (np.float16, np.float32)) -> Any:
    if isinstance(values, ArrowRegions):
        return values
    array = values.detach().cpu().float().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind != "f":
        raise TypeError(f"{what} must be floating point, got {array.dtype}")
    if array.ndim != dims:
        raise ValueError(f"{what} must have {dims} dimensions, got shape {array.shape}")
    return array if array.dtype in dtypes else array.astype(np.float32)
