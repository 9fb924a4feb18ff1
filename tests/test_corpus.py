"""A precomputed split as training and evaluation read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.corpus import PrecomputedCorpus
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.vocabulary import Vocabulary

IMAGES = 5


@pytest.fixture(params=[1, 5], ids=["a row an image", "a row a caption"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> PrecomputedCorpus:
    features = np.random.default_rng(0).standard_normal((IMAGES, 3, 4)).astype(np.float32)
    np.save(tmp_path / "dev_ims.npy", features.repeat(request.param, axis=0))
    captions = [f"word{index % 7} " * (1 + index % 4) for index in range(5 * IMAGES)]
    (tmp_path / "dev_caps.txt").write_text("\n".join(captions), "utf-8")
    return PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), Vocabulary.build(captions, min_count=1))


def test_the_fingerprint_tells_other_data(corpus: PrecomputedCorpus, tmp_path: Path) -> None:
    same = PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), corpus.vocabulary)
    assert same.fingerprint() == corpus.fingerprint()
    features = np.array(corpus.data.features)
    features[corpus.data.feature_rows[3], 2, 1] += 1
    seen = {corpus.fingerprint()}
    for array in (features, np.array(corpus.data.features).reshape(len(features), 4, 3)):
        np.save(tmp_path / "other_ims.npy", array)
        (tmp_path / "other_caps.txt").write_text((tmp_path / "dev_caps.txt").read_text())
        seen.add(PrecomputedCorpus(PrecomputedDataset(tmp_path, "other"), corpus.vocabulary).fingerprint())
    (tmp_path / "dev_caps.txt").write_text("word\n" * corpus.n_captions)
    seen.add(PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), corpus.vocabulary).fingerprint())
    assert len(seen) == 4


def test_images_come_once_and_in_order(corpus: PrecomputedCorpus) -> None:
    batches = list(corpus.image_batches(2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    features = np.random.default_rng(0).standard_normal((IMAGES, 3, 4)).astype(np.float32)
    assert torch.equal(torch.cat(batches), torch.from_numpy(features))


def test_captions_come_in_order(corpus: PrecomputedCorpus) -> None:
    seen = []
    for tokens, lengths in corpus.caption_batches(4):
        seen += [row[:length].tolist() for row, length in zip(tokens, lengths.tolist(), strict=True)]
        assert not any(row[length:].any() for row, length in zip(tokens, lengths.tolist(), strict=True))
    assert seen == [corpus.vocabulary.encode(caption) for caption in corpus.data.captions]


def test_training_batches_can_start_anywhere(corpus: PrecomputedCorpus) -> None:
    whole = list(corpus.training_batches(4, seed=1, epoch=2))
    assert sorted(torch.cat([batch.caption_ids for batch in whole]).tolist()) == list(range(corpus.n_captions))
    for start in (0, 3, len(whole)):
        rest = list(corpus.training_batches(4, seed=1, epoch=2, start=start))
        assert [batch.caption_ids.tolist() for batch in rest] == [batch.caption_ids.tolist() for batch in whole[start:]]
    other = list(corpus.training_batches(4, seed=1, epoch=3))
    assert [batch.caption_ids.tolist() for batch in other] != [batch.caption_ids.tolist() for batch in whole]
