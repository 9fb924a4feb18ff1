"""Model directories: there and back, and what a reader is told about files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from crossret.checkpoints import load_model, save_model
from crossret.data.vocabulary import Vocabulary
from crossret.models import Scan, ScanConfig
from crossret.tensor_files import read_header, read_tensors, write_tensors

VOCABULARY = Vocabulary(["dog", "cat", "mat"])
CONFIG = ScanConfig(image_dim=5, vocabulary_size=7, embed_dim=4, word_dim=3, cross_attention="i2t", pooling="lse")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(Scan(CONFIG), tmp_path / "model", VOCABULARY)
    return tmp_path / "model"


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_saved_is_loaded_again(saved: Path) -> None:
    torch.manual_seed(0)
    model, (loaded, vocabulary) = Scan(CONFIG), load_model(saved)
    assert loaded.config == CONFIG
    assert vocabulary.word2idx == VOCABULARY.word2idx
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    features, tokens = torch.randn(2, 3, 5), torch.randint(0, 7, (2, 4))
    lengths = torch.tensor([4, 2])
    with torch.no_grad():
        expected = model.score(model.encode_images(features), model.encode_captions(tokens, lengths))
        assert torch.equal(
            loaded.score(loaded.encode_images(features), loaded.encode_captions(tokens, lengths)), expected
        )


def test_a_loaded_model_can_be_trained(saved: Path) -> None:
    model, _ = load_model(saved)
    tokens = torch.randint(0, 7, (2, 4))
    images, captions = model.encode_images(torch.randn(2, 3, 5)), model.encode_captions(tokens, torch.tensor([4, 2]))
    model.loss(images, captions)["loss"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_saving_over_another_model_replaces_all_of_it(saved: Path) -> None:
    other = ScanConfig(image_dim=5, vocabulary_size=6, embed_dim=2, word_dim=3)
    save_model(Scan(other), saved, Vocabulary(["dog", "cat"]))
    assert load_model(saved)[0].config == other


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_model(saved)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("config.json", '"lambda_softmax": 9.0', '"lambda_softmax": 8.0', "config.json: not the hyper-parameters that"),
        ("config.json", '"embed_dim": 4', '"embed_dim": 400000', "config.json: not the hyper-parameters that"),
        ("vocabulary.json", "cat", "cow", "vocabulary.json: not the vocabulary that"),
    ],
)
def test_files_that_do_not_belong_together_are_errors(saved: Path, name: str, old: str, new: str, message: str) -> None:
    rewrite(saved / name, old, new)
    with pytest.raises(ValueError, match=message):
        load_model(saved)


def forge(saved: Path, description: str, **tensors: torch.Tensor) -> None:
    """Hyper-parameters and weights that claim to belong together, as a stranger could write them."""
    (saved / "config.json").write_text(description, "utf-8")
    types, metadata = read_header(saved / "model.safetensors")
    weights = {**read_tensors(saved / "model.safetensors", types), **tensors}
    write_tensors(saved / "model.safetensors", weights, {**metadata, "model": description})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # A terabyte that is never allocated: the shapes in the weights' header disagree first.
        ('"embed_dim": 4', '"embed_dim": 16000000', r"model.safetensors: tensor 'image.fc.weight' is \(4, 5\)"),
        ('"bidirectional": true', '"bidirectional": false', "model.safetensors: unexpected tensor 'text.rnn"),
        ('"embed_dim": 4', '"embed_dim": -4', "config.json: embed_dim must be at least 1"),
        ('"embed_dim": 4', '"size": 4', "config.json: ScanConfig has no field 'size'"),
        ('"model": "scan"', '"model": "skan"', "config.json: 'model' must be one of scan, not 'skan'"),
        ('"model": "scan"', '"model": []', "config.json: 'model' must be one of scan"),
        ('"model": "scan"', '"name": "scan"', "config.json: must be an object of 'model' and 'config'"),
        ('"model": "scan",', "", "config.json: must be an object of 'model' and 'config'"),
        ('"model"', "model", "config.json: not JSON"),
    ],
)
def test_forged_hyper_parameters_are_errors(saved: Path, old: str, new: str, message: str) -> None:
    description = (saved / "config.json").read_text("utf-8")
    assert old in description
    forge(saved, description.replace(old, new))
    with pytest.raises(ValueError, match=message):
        load_model(saved)


def test_forged_weights_are_errors(saved: Path) -> None:
    description = (saved / "config.json").read_text("utf-8")
    forge(saved, description, **{"text.embed.weight": torch.zeros(7, 3, dtype=torch.float64)})
    with pytest.raises(
        ValueError, match=r"model.safetensors: tensor 'text.embed.weight' is .* torch.float64, expected"
    ):
        load_model(saved)


def test_a_config_of_a_gigabyte_is_not_read(saved: Path) -> None:
    with open(saved / "config.json", "r+b") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match=r"config.json: larger than \d+ bytes"):
        load_model(saved)


def test_config_is_the_model_s_own_json(saved: Path) -> None:
    contents = json.loads((saved / "config.json").read_text("utf-8"))
    assert ScanConfig.from_dict(contents["config"]) == CONFIG


def test_a_vocabulary_of_another_size_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the vocabulary has 5 words, but the model was made for 7"):
        save_model(Scan(CONFIG), tmp_path, Vocabulary(["dog"]))
