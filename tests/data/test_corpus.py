"""A precomputed split as training and evaluation read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data.corpus import PrecomputedCorpus, check_readable
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.vocabulary import Vocabulary
from crossret.hyperparameters import HanConfig

IMAGES = 5


@pytest.fixture(params=[1, 5], ids=["a row an image", "a row a caption"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> PrecomputedCorpus:
    features = np.random.default_rng(0).standard_normal((IMAGES, 3, 4)).astype(np.float32)
    np.save(tmp_path / "dev_ims.npy", features.repeat(request.param, axis=0))
    captions = [f"word{index % 7} " * (1 + index % 4) for index in range(5 * IMAGES)]
    (tmp_path / "dev_caps.txt").write_text("\n".join(captions), "utf-8")
    return PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), Vocabulary.build(captions, min_count=1))


def with_boxes(corpus: PrecomputedCorpus, change: int = 0) -> PrecomputedCorpus:
    """The same with boxes, the features in order; ``change`` is added to one of the last image's."""
    data = corpus.data
    boxes = np.sort(data.features)
    boxes[data.feature_rows[-1], 1, 2] += change
    path = Path(str(data.features.filename)).with_name("dev_boxes.npy")
    np.save(path, boxes)
    found = PrecomputedCorpus(PrecomputedDataset(path.parent, "dev"), corpus.vocabulary)
    path.unlink()  # mapped still
    return found


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


@pytest.mark.parametrize(
    ("words", "config", "most"),
    [
        (1025, {}, 1024),
        (1025, {"max_words": 1025}, 1024),
        (1024, {}, None),
        (20_000, {"max_words": 60}, None),
        (511, {"text_encoder": "transformer"}, 510),
        (510, {"text_encoder": "transformer"}, None),
        (511, {"text_encoder": "transformer", "max_words": 510}, None),
    ],
)
def test_a_caption_longer_than_the_model_reads_is_cut_by_it_or_named(
    corpus: PrecomputedCorpus, words: int, config: dict[str, Any], most: int | None
) -> None:
    captions = Path(corpus.data.captions_name)
    captions.write_text("word\n" * (corpus.n_captions - 1) + "a " * words)
    long = PrecomputedCorpus(PrecomputedDataset(captions.parent, "dev"), corpus.vocabulary)
    model = HanConfig(image_dim=4, vocabulary_size=len(corpus.vocabulary), **config)
    if most is None:
        check_readable(model, long)
    else:
        message = rf"dev_caps\.txt, line 25: the caption has {words:,} words, more than the {most:,} that the model"
        with pytest.raises(ValueError, match=message):
            check_readable(model, long)


def test_the_fingerprint_tells_other_boxes(corpus: PrecomputedCorpus) -> None:
    seen = {corpus.fingerprint(), with_boxes(corpus).fingerprint(), with_boxes(corpus, 1).fingerprint()}
    assert len(seen) == 3
    assert with_boxes(corpus).fingerprint() in seen


def test_the_fingerprint_without_boxes_is_that_of_older_checkpoints(corpus: PrecomputedCorpus) -> None:
    assert corpus.fingerprint() in ("3000a8abfa30f82b0b3876a91d6ea413", "b3163cff80b162829e873b563b8d02e8")


def test_images_come_once_and_in_order(corpus: PrecomputedCorpus) -> None:
    features = np.random.default_rng(0).standard_normal((IMAGES, 3, 4)).astype(np.float32)
    regions, *others = zip(*corpus.image_batches(2), strict=True)
    assert [len(batch) for batch in regions] == [2, 2, 1]
    assert torch.equal(torch.cat(regions), torch.from_numpy(features))
    assert others == [(None,) * 3] * 3
    regions, boxes, *_ = zip(*with_boxes(corpus).image_batches(2), strict=True)
    assert torch.equal(torch.cat(regions), torch.from_numpy(features))
    assert torch.equal(torch.cat(boxes), torch.from_numpy(np.sort(features)))


def test_training_batches_can_start_anywhere(corpus: PrecomputedCorpus) -> None:
    whole = list(corpus.training_batches(4, seed=1, epoch=2))
    assert sorted(torch.cat([batch.caption_ids for batch in whole]).tolist()) == list(range(corpus.n_captions))
    for start in (0, 3, len(whole)):
        rest = list(corpus.training_batches(4, seed=1, epoch=2, start=start))
        assert [batch.caption_ids.tolist() for batch in rest] == [batch.caption_ids.tolist() for batch in whole[start:]]
