"""Data sets of the package datasets: the batches of the same data in memory, read from the disk as they are used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import InMemoryCorpus, from_datasets
from crossret.data.arrow import ArrowRegions

datasets = pytest.importorskip("datasets")

RNG = np.random.default_rng(0)
LENGTHS = [3, 5, 1, 4]
FEATURES = [RNG.standard_normal((length, 6)).astype(np.float32) for length in LENGTHS]
BOXES = [np.sort(RNG.random((length, 2, 2)), axis=1).reshape(length, 4).astype(np.float32) for length in LENGTHS]
CAPTIONS = [["a dog", "the dog"], ["a cat"], ["a red ball", "a ball", "ball"], ["two dogs"]]
COLUMNS = {"features": FEATURES, "captions": CAPTIONS, "boxes": BOXES, "name": [7, 9, 8, 3]}


def padded(parts: list[Any]) -> np.ndarray:
    return np.stack([np.pad(part, ((0, 5 - len(part)), (0, 0))) for part in parts])


def made(**columns: Any) -> Any:
    return datasets.Dataset.from_dict({**COLUMNS, **columns})


def same(corpus: InMemoryCorpus, expected: InMemoryCorpus) -> None:
    assert corpus.fingerprint() == expected.fingerprint()
    for ours, theirs in zip(
        corpus.training_batches(3, seed=0, epoch=1), expected.training_batches(3, seed=0, epoch=1), strict=True
    ):
        assert ours.fields().keys() == theirs.fields().keys()
        assert all(torch.equal(part, theirs.fields()[name]) for name, part in ours.fields().items())
    for ours, theirs in zip(corpus.image_batches(3), expected.image_batches(3), strict=True):
        assert torch.equal(ours.features, theirs.features)


@pytest.mark.parametrize("stored", [False, True])
def test_batches_are_those_of_the_same_in_memory(tmp_path: Path, stored: bool) -> None:
    dataset = made()
    if stored:
        dataset.save_to_disk(tmp_path / "x")
        dataset = datasets.load_from_disk(tmp_path / "x")
    corpus = from_datasets(dataset.select([2, 0, 1, 3]), boxes="boxes", ids="name")
    assert isinstance(corpus.data.features, ArrowRegions)
    order = [2, 0, 1, 3]
    captions = [caption for image in order for caption in CAPTIONS[image]]
    owners = [row for row, image in enumerate(order) for _ in CAPTIONS[image]]
    same(
        corpus,
        InMemoryCorpus(
            padded(FEATURES)[order], captions, owners, boxes=padded(BOXES)[order], lengths=np.array(LENGTHS)[order]
        ),
    )
    assert corpus.data.ids == ["8", "7", "9", "3"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_of_one_shape_and_a_caption_each(dtype: str) -> None:
    regions = padded(FEATURES).astype(dtype)
    kinds = datasets.Features({"x": datasets.Array2D((5, 6), dtype), "text": datasets.Value("string")})
    texts = [captions[0] for captions in CAPTIONS]
    dataset = datasets.Dataset.from_dict({"x": list(regions), "text": texts}, features=kinds)
    corpus = from_datasets(dataset, features="x", captions="text")
    assert corpus.data.lengths is None
    same(corpus, InMemoryCorpus(regions, texts))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"features": "x"}, "dataset: x: no such column; there is features, captions, boxes, name"),
        ({}, {"features": "captions"}, "captions: must be lists of lists of floating point, got list<"),
        ({"features": [*FEATURES[:3], FEATURES[3][:, :2]]}, {}, "row 3: a region of 2 numbers, others have 6"),
        ({"features": [[[]], *FEATURES[1:]]}, {}, "features, row 0: a region of no numbers"),
        ({"captions": [*CAPTIONS[:3], [" "]]}, {}, "dataset: captions, row 3: the caption is empty"),
        ({"boxes": BOXES[::-1]}, {"boxes": "boxes"}, "row 0 has not as many boxes as features"),
        ({"boxes": [-box for box in BOXES]}, {"boxes": "boxes"}, "boxes, row 0: the box of region 0 is"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_datasets(made(**columns), **options)


def test_what_is_no_dataset_is_refused_by_name() -> None:
    for wrong, message in (
        (made().to_iterable_dataset(), "IterableDataset, which streams"),
        (datasets.DatasetDict(train=made()), "DatasetDict, of which one split is taken"),
        (COLUMNS, "a dict, not a datasets.Dataset"),
    ):
        with pytest.raises(TypeError, match=message):
            from_datasets(wrong)
    with pytest.raises(TypeError, match="captions, row 2: must be a text or a list of some, not NoneType"):
        from_datasets(made(captions=[*CAPTIONS[:2], None, ["a dog"]]))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'crossret\[datasets\]'"):
        from_datasets(None)
