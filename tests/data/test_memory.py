"""Images and captions in memory: the same training, figures and results as of files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from crossret.data import InMemoryCorpus, Vocabulary
from crossret.evaluation import encode_dataset
from crossret.models import Scan, ScanConfig
from crossret.training import TrainingConfig, train

FEATURES = np.random.default_rng(0).standard_normal((6, 4, 5)).astype(np.float32)
BOXES = np.sort(np.random.default_rng(1).random((6, 4, 2, 2)), axis=2).reshape(6, 4, 4).astype(np.float32)
COLOURS = ["red", "green", "blue", "black", "white"]
CAPTIONS = [f"a {colour} {thing}" for thing in ("dog", "cat") for colour in COLOURS] * 3
VOCABULARY = Vocabulary.build(CAPTIONS, 1)


def in_memory(**options: Any) -> InMemoryCorpus:
    return InMemoryCorpus(torch.from_numpy(FEATURES), CAPTIONS, vocabulary=VOCABULARY, boxes=BOXES, **options)


def test_images_of_captions_may_be_in_any_order() -> None:
    images = np.random.default_rng(2).integers(0, 6, len(CAPTIONS))
    for given in (images, torch.from_numpy(images), images.tolist()):
        corpus = InMemoryCorpus(FEATURES.astype(np.float64), CAPTIONS, given)
        assert corpus.image_of_caption.tolist() == images.tolist()
        assert corpus.fingerprint() != InMemoryCorpus(FEATURES.astype(np.float64), CAPTIONS).fingerprint()
    batch = corpus.batch([3, 0])
    assert torch.equal(batch.regions, torch.from_numpy(FEATURES[images[[3, 0]]]))
    assert batch.tokens[0, : batch.lengths[0]].tolist() == corpus.vocabulary.encode(CAPTIONS[3])


def test_a_loader_makes_its_batches() -> None:
    corpus = in_memory()
    loader = DataLoader(range(corpus.n_captions), batch_size=8, shuffle=True, collate_fn=corpus.batch)
    seen = torch.cat([batch.caption_ids for batch in loader])
    assert seen.sort().values.tolist() == list(range(corpus.n_captions))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"features": FEATURES.astype(np.int64)}, TypeError, "corpus: features must be floating point, got int64"),
        ({"features": FEATURES[0]}, ValueError, "corpus: features must have 3 dimensions, got shape"),
        ({"features": FEATURES[:0]}, ValueError, "which holds nothing"),
        ({"captions": [], "image_of_caption": np.zeros(0, int)}, ValueError, "corpus: captions: there are none"),
        ({"captions": CAPTIONS[:7]}, ValueError, "7 captions of 6 images, .* pass image_of_caption"),
        ({"captions": ["a dog", " ", *CAPTIONS[2:]]}, ValueError, "corpus: captions, 2: the caption is empty"),
        ({"image_of_caption": [0, 1]}, ValueError, "image_of_caption must be 30 integers"),
        ({"image_of_caption": [0] * 29 + [6]}, ValueError, r"image_of_caption\[29\] must be in 0..5, got 6"),
        ({"boxes": BOXES[:3]}, ValueError, r"boxes have shape \(3, 4, 4\), not \(6, 4, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InMemoryCorpus(**{"features": FEATURES, "captions": CAPTIONS, **arguments})


def test_tokens_in_the_place_of_words(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    tokens = [random.standard_normal((length, 3)).astype(np.float32) for length in random.integers(1, 5, len(CAPTIONS))]
    corpus = InMemoryCorpus(FEATURES, CAPTIONS, tokens=tokens)
    assert corpus.vocabulary is None and corpus.text_dim == 3 and corpus.spans(0) is None
    batch = corpus.batch([7, 2])
    assert batch.lengths.tolist() == [len(tokens[7]), len(tokens[2])]
    for row, caption in enumerate((7, 2)):
        np.testing.assert_array_equal(batch.tokens[row, : len(tokens[caption])], tokens[caption])
    trained = Scan(ScanConfig(image_dim=5, vocabulary_size=0, text_dim=3, embed_dim=8))
    config = TrainingConfig(epochs=1, decay_epochs=(), batch_size=10)
    train(trained, corpus, corpus, config, tmp_path, progress=False)
    wrong = Scan(ScanConfig(image_dim=5, vocabulary_size=0, text_dim=4, embed_dim=8))
    with pytest.raises(ValueError, match="corpus: tokens: tokens of captions have 3 numbers, but the model's text_dim"):
        encode_dataset(wrong, corpus)
    for given, message in (
        (tokens[1:], "29 arrays of 30 captions"),
        ([*tokens[:-1], np.zeros((0, 3), np.float32)], r"tokens\[29\] must have shape \(W, 3\)"),
        ([*tokens[:-1], np.zeros((2, 4), np.float32)], r"tokens\[29\] must have shape \(W, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            InMemoryCorpus(FEATURES, CAPTIONS, tokens=given)
