"""Scores that are no finite numbers are refused, and the image that made them so is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset
from crossret.data.corpus import Corpus, PrecomputedCorpus
from crossret.data.vocabulary import Vocabulary
from crossret.evaluation import check_finite, encode_dataset, score_matrix
from crossret.evaluation.finiteness import check_features
from crossret.models import Scan, ScanConfig
from tests.training.toy import IMAGE_DIM, ToyCorpus


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_score_that_is_not_finite_is_named(value: float) -> None:
    scores = np.zeros((4, 6), np.float32)
    check_finite(scores, ToyCorpus(4))
    scores[2, 5] = scores[2, 4] = scores[3, 0] = value
    with pytest.raises(ValueError, match=rf"^image 2 has the score {value} with caption 14: toy: image 2 has finite f"):
        check_finite(scores, ToyCorpus(4), first_caption=10)


def stored(directory: Path, regions: np.ndarray) -> PrecomputedCorpus:
    np.save(directory / "dev_ims.npy", regions)
    (directory / "dev_caps.txt").write_text("a b\n" * 5 * len(regions))
    return PrecomputedCorpus(PrecomputedDataset(directory, "dev"), Vocabulary(["a", "b"]))


def in_memory(directory: Path, regions: np.ndarray) -> ToyCorpus:
    corpus = ToyCorpus(len(regions))
    corpus.regions = torch.from_numpy(regions)
    return corpus


@pytest.mark.parametrize("make", [stored, in_memory])
def test_an_image_whose_features_are_not_finite_is_named(
    tmp_path: Path, make: Callable[[Path, np.ndarray], Corpus]
) -> None:
    regions = np.random.default_rng(0).standard_normal((7, 3, IMAGE_DIM)).astype(np.float32)
    regions[4, 1, 2] = np.inf
    corpus = make(tmp_path, regions)
    model = _model(corpus)
    encoded = encode_dataset(model, corpus)
    place = "toy: image 4" if make is in_memory else f"{tmp_path}/dev_ims.npy: item 4"
    with pytest.raises(ValueError, match=f"^image 4 has .* with caption 0: {place} has features that are not finite"):
        score_matrix(model, *encoded, corpus=corpus)
    assert np.isfinite(score_matrix(model, *encoded)).all(1).tolist() == [True] * 4 + [False] + [True] * 2


@pytest.mark.parametrize("make", [stored, in_memory])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_named(
    tmp_path: Path, make: Callable[[Path, np.ndarray], Corpus], value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.evaluation.finiteness._BLOCK_BYTES", 2 * 4 * 5 * IMAGE_DIM)  # two or three images
    regions = np.random.default_rng(0).standard_normal((7, 3, IMAGE_DIM)).astype(np.float32)
    done: list[tuple[int, int]] = []
    check_features(make(tmp_path, regions), progress=lambda *step: done.append(step))
    assert done[-1] == (7, 7)
    assert len(done) > 1
    regions[5, 1, 2] = regions[6] = value
    corpus = make(tmp_path, regions)
    check_features(corpus, items=slice(0, 5))
    place = "toy: image 5" if make is in_memory else f"{tmp_path}/dev_ims.npy: item 5"
    for items in (slice(None), slice(3, 7)):
        with pytest.raises(ValueError, match=f"^{place} has features that are not finite in float32$"):
            check_features(corpus, items=items)


def test_it_is_not_the_features_of_a_model_that_diverged(tmp_path: Path) -> None:
    corpus = stored(tmp_path, np.ones((7, 3, IMAGE_DIM), np.float32))
    model = _model(corpus)
    with torch.no_grad():
        model.image.fc.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="item 0 has finite features, but the model's weights are not finite"):
        score_matrix(model, *encode_dataset(model, corpus), corpus=corpus)


def _model(corpus: Corpus) -> Scan:
    sizes = {"image_dim": IMAGE_DIM, "vocabulary_size": len(corpus.vocabulary), "embed_dim": 8, "word_dim": 4}
    return Scan(ScanConfig(**sizes))
