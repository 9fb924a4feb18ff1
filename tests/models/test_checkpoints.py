"""Model directories: there and back, and what a reader is told about files that do not fit."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch

from crossret.data.vocabulary import Vocabulary
from crossret.files.tensors import read_header, read_tensors, write_tensors
from crossret.models import MODELS, Scan, ScanConfig
from crossret.models.checkpoints import load_model, save_model
from tests.hyperparameters.others import without_defaults
from tests.models.batch import EVERY_MODEL, make

VOCABULARY = Vocabulary(["dog", "cat", "mat"])
CONFIG = ScanConfig(image_dim=5, vocabulary_size=7, embed_dim=4, word_dim=3, cross_attention="i2t", pooling="lse")
OTHER = ScanConfig(image_dim=5, vocabulary_size=6, embed_dim=2, word_dim=3)
OTHER_VOCABULARY = Vocabulary(["dog", "cow"])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(Scan(CONFIG), tmp_path / "model", VOCABULARY)
    return tmp_path / "model"


def test_saved_is_loaded_again(saved: Path) -> None:
    torch.manual_seed(0)
    model, (loaded, vocabulary) = Scan(CONFIG), load_model(saved)
    assert vocabulary.word2idx == VOCABULARY.word2idx
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    tokens = torch.randint(0, 7, (2, 4))
    images, captions = loaded.encode_images(torch.randn(2, 3, 5)), loaded.encode_captions(tokens, torch.tensor([4, 2]))
    loaded.loss(images, captions)["loss"].backward()  # it can be trained
    assert all(parameter.grad is not None for parameter in loaded.parameters())


@EVERY_MODEL
def test_every_hyper_parameter_is_loaded_again(kind: str, tmp_path: Path) -> None:
    config = without_defaults(make(kind, vocabulary_size=0, text_dim=7).config)
    save_model(MODELS[kind][1](config), tmp_path, None)
    assert load_model(tmp_path)[0].config == config


def test_saving_over_another_model_replaces_all_of_it(saved: Path) -> None:
    save_model(Scan(OTHER), saved, OTHER_VOCABULARY)
    model, vocabulary = load_model(saved)
    assert (model.config, vocabulary.word2idx) == (OTHER, OTHER_VOCABULARY.word2idx)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_model(saved)


@pytest.mark.parametrize("replacements", [0, 1, 2])
def test_a_save_over_another_model_that_fails_leaves_no_weights(
    saved: Path, replacements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, calls = os.replace, itertools.count()

    def failing(*paths: str) -> None:
        if next(calls) == replacements:
            raise OSError("the disk is gone")
        replace(*paths)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        save_model(Scan(OTHER), saved, OTHER_VOCABULARY)
    with pytest.raises(FileNotFoundError, match=r"model.safetensors"):
        load_model(saved)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # A terabyte that is never allocated: the shapes in the weights' header disagree first.
        ('"embed_dim": 4', '"embed_dim": 16000000', r"tensor 'image.fc.weight' is \(4, 5\)"),
        ('"bidirectional": true', '"bidirectional": false', "unexpected tensor 'text.rnn"),
        ('"embed_dim": 4', '"embed_dim": ' + "1" * 5000, "not JSON ..*5000 digits"),
        ('"vocabulary_size": 7', '"vocabulary_size": 6', "the vocabulary has 7 words, but the model was made for 6"),
        ('"embed_dim": 4', '"size": 4', "ScanConfig has no field 'size'"),
        (
            '"model": "scan"',
            '"model": "skan"',
            "'model' must be one of scan, sman, han, mhsan, oan, vse, laps, not 'skan'",
        ),
    ],
)
def test_forged_hyper_parameters_are_errors(saved: Path, old: str, new: str, message: str) -> None:
    description = (saved / "config.json").read_text("utf-8")
    assert old in description
    (saved / "config.json").write_text(description.replace(old, new))
    with pytest.raises(ValueError, match=rf"model/(config.json|model.safetensors|vocabulary.json): {message}"):
        load_model(saved)


def test_forged_weights_are_errors(saved: Path) -> None:
    path = saved / "model.safetensors"
    weights = read_tensors(path, read_header(path)[0])
    write_tensors(path, {**weights, "text.embed.weight": torch.zeros(7, 3, dtype=torch.float64)}, {})
    with pytest.raises(
        ValueError, match=r"model.safetensors: tensor 'text.embed.weight' is .* torch.float64, expected"
    ):
        load_model(saved)
