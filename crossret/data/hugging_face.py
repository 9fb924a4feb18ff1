"""Data sets of the package ``datasets`` as a corpus: captions in memory, features read from Arrow as they are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crossret.data.arrow import ArrowRegions, check_column
from crossret.data.memory import InMemoryCorpus
from crossret.data.precomputed import check_caption
from crossret.data.vocabulary import Vocabulary

_BLOCK = 1024  # rows read at a time


def from_datasets(
    dataset: Any,
    vocabulary: Vocabulary | None = None,
    *,
    features: str = "features",
    captions: str = "captions",
    boxes: str | None = None,
    ids: str | None = None,
    name: str = "dataset",
) -> InMemoryCorpus:
    """A ``datasets.Dataset`` with a row an image as a corpus. What it keeps on the disk stays there.

    Args:
        dataset: the images.
        vocabulary: as ``InMemoryCorpus`` takes it.
        features: the column of regions, lists or an ``Array2D`` (k, d) of floating point; k may differ by image.
        captions: that of a caption, or a list of some, of the image.
        boxes: that of boxes (k, 4), x0, y0, x1, y1; None where there are none.
        ids: that of the images' names, texts or integers; None where they have none.
        name: the data set's name in errors.

    Raises:
        ImportError: the extra ``datasets`` is missing.
        TypeError: ``dataset`` is no ``Dataset``: one that streams, or several splits; or a caption is no text.
            ValueError: a column is not there or not such a column, or as ``InMemoryCorpus``. They name the column and
            the row.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"from_datasets needs datasets: pip install 'crossret[datasets]' ({error})") from error
    if not isinstance(dataset, datasets.Dataset):
        why = {
            datasets.IterableDataset: "which streams: images are read in any order, so load it without streaming",
            datasets.DatasetDict: "of which one split is taken: dataset['train']",
        }.get(type(dataset), "not a datasets.Dataset")
        raise TypeError(f"{name}: a {type(dataset).__name__}, {why}")
    regions = ArrowRegions(dataset, features, f"{name}: {features}")
    texts: list[str] = []
    owners: list[int] = []
    for row, value in enumerate(_values(dataset, captions, name)):
        own = value if isinstance(value, list) else [value]
        for text in own:
            place = f"{name}: {captions}, row {row}"
            if not isinstance(text, str):
                raise TypeError(f"{place}: must be a text or a list of some, not {type(text).__name__}")
            check_caption(text, place)
        texts += own
        owners += [row] * len(own)
    corners = None if boxes is None else ArrowRegions(dataset, boxes, f"{name}: {boxes}")
    if corners is not None and (differ := (corners.lengths != regions.lengths).nonzero()[0]).size:
        raise ValueError(f"{name}: row {differ[0]} has not as many {boxes} as {features}")
    lengths = None if (regions.lengths == regions.shape[1]).all() else regions.lengths
    corpus = InMemoryCorpus(regions, texts, owners, vocabulary=vocabulary, boxes=corners, lengths=lengths, name=name)
    corpus.data.ids = None if ids is None else [str(value) for value in _values(dataset, ids, name)]
    return corpus


def _values(dataset: Any, column: str, name: str) -> Iterator[Any]:
    check_column(dataset, column, f"{name}: {column}")
    rows = dataset.select_columns([column]).with_format("arrow")
    for first in range(0, len(dataset), _BLOCK):
        yield from rows[first : first + _BLOCK].column(0).to_pylist()
