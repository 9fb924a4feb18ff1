"""SCAN's checkpoints: a model that scores as the published code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.compat.checkpoints import import_checkpoint
from crossret.models.checkpoints import load_model, save_model
from tests.compat import published as formulas
from tests.compat.checkpoints.published import VOCABULARY, save, scan_checkpoint, scan_images, scan_words


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"both_ways": False},
        {"weight_norm": True},
        {"no_imgnorm": True, "no_txtnorm": True},
        {"cross_attn": "i2t", "agg_func": "Mean", "lambda_softmax": 4.0},
        {"raw_feature_norm": "softmax", "agg_func": "Sum", "max_violation": False},
        {"agg_func": "Max", "lambda_softmax": 4},
    ],
    ids=str,
)
def test_the_model_scores_as_the_published_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    checkpoint = scan_checkpoint(**changes)
    path = save(checkpoint, tmp_path / "model_best.pth.tar")
    save_model(import_checkpoint(path, VOCABULARY), tmp_path / "model", VOCABULARY)
    model, vocabulary = load_model(tmp_path / "model")
    assert vocabulary.idx2word == VOCABULARY.idx2word
    opt = checkpoint["opt"]
    assert model.config.margin == opt.margin
    assert model.config.negatives == ("hardest" if opt.max_violation else "sum")
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 4, 6, generator=generator)
    tokens, lengths = torch.randint(0, 7, (2, 5), generator=generator), (5, 2)
    words = torch.zeros(2, 5, 5)
    for caption, length in enumerate(lengths):
        words[caption, :length] = scan_words(checkpoint, tokens[caption, :length])
    expected = formulas.scores(scan_images(checkpoint, features).double(), words.double(), lengths, opt)
    with torch.no_grad():
        captions = model.encode_captions(tokens, torch.tensor(lengths))
        scores = model.score(model.encode_images(features), captions)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-5)


def test_an_option_of_later_versions_has_the_default_of_earlier_ones(tmp_path: Path) -> None:
    checkpoint = scan_checkpoint()
    del checkpoint["opt"].no_txtnorm
    assert import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY).config.text_norm
