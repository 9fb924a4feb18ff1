"""Model directories: there and back, and what a reader is told about files that do not fit."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crossret.data.vocabulary import Vocabulary
from crossret.files.tensors import read_header, read_tensors, write_tensors
from crossret.models import Scan, ScanConfig
from crossret.models.checkpoints import load_model, save_model

TESTS = Path(__file__).parent
VOCABULARY = Vocabulary(["dog", "cat", "mat"])
CONFIG = ScanConfig(image_dim=5, vocabulary_size=7, embed_dim=4, word_dim=3, cross_attention="i2t", pooling="lse")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(Scan(CONFIG), tmp_path / "model", VOCABULARY)
    return tmp_path / "model"


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


def test_what_the_config_says_is_read(saved: Path) -> None:
    path = saved / "config.json"
    path.write_text(path.read_text().replace('"lse"', '"avg"'))
    assert load_model(saved)[0].config == dataclasses.replace(CONFIG, pooling="avg")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_model(saved)


OTHER, OTHER_VOCABULARY = (
    ScanConfig(image_dim=5, vocabulary_size=6, embed_dim=2, word_dim=3),
    Vocabulary(["dog", "cow"]),
)


def fingerprint(directory: Path) -> tuple[ScanConfig, list[str], float]:
    model, vocabulary = load_model(directory)
    return model.config, vocabulary.idx2word, sum(float(tensor.sum()) for tensor in model.state_dict().values())


def alternate(directory: Path) -> None:
    """Save weights of one model over others for ever: what is killed."""
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(Scan(CONFIG))
    while True:
        for model in models:
            save_model(model, directory, VOCABULARY)


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


def test_killed_again_and_again_there_is_always_one_whole_model(tmp_path: Path) -> None:
    """Of weights of one model, as a training saves them."""
    whole = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_model(Scan(CONFIG), tmp_path / str(seed), VOCABULARY)
        whole.append(fingerprint(tmp_path / str(seed)))
    code = "import os, sys; from pathlib import Path; import test_checkpoints as t\n"
    # One process, which imports torch once, forks those that are killed.
    code += (
        "for kill in range(12):\n"
        "    child = os.fork()\n"
        "    if not child: t.alternate(Path(sys.argv[1]))\n"
        "    import time; time.sleep(0.02 + 0.007 * kill)\n"
        "    os.kill(child, 9); os.waitpid(child, 0)\n"
        "    print(repr(t.fingerprint(Path(sys.argv[1]))), flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    save_model(load_model(tmp_path / "0")[0], tmp_path / "model", VOCABULARY)
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert len(output) == 12
    assert set(output) <= {repr(one) for one in whole}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # A terabyte that is never allocated: the shapes in the weights' header disagree first.
        ('"embed_dim": 4', '"embed_dim": 16000000', r"tensor 'image.fc.weight' is \(4, 5\)"),
        ('"bidirectional": true', '"bidirectional": false', "unexpected tensor 'text.rnn"),
        ('"embed_dim": 4', '"embed_dim": -4', "embed_dim must be at least 1"),
        ('"embed_dim": 4', f'"embed_dim": {10**250}', "embed_dim must be at most"),
        ('"embed_dim": 4', '"embed_dim": ' + "1" * 5000, "not JSON .a whole number of 5000 digits"),
        ('"margin": 0.2', '"margin": ' + "1" * 401, "not JSON .a whole number of 401 digits"),
        ('"vocabulary_size": 7', '"vocabulary_size": 6', "the vocabulary has 7 words, but the model was made for 6"),
        ('"embed_dim": 4', '"size": 4', "ScanConfig has no field 'size'"),
        ('"embed_dim": 4', '"\\ud800": 4', "not JSON"),
        ('"model": "scan"', '"model": "skan"', "'model' must be one of scan, sman, han, mhsan, oan, vse, not 'skan'"),
        ('"model": "scan"', '"model": []', "'model' must be one of scan"),
        ('"model": "scan"', '"name": "scan"', "must be an object of 'model' and 'config'"),
        ('"model": "scan",', "", "must be an object of 'model' and 'config'"),
        ('"model"', "model", "not JSON"),
        ('"model"', "[" * 200_000, "not JSON"),
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


def test_a_vocabulary_of_another_size_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the vocabulary has 5 words, but the model was made for 7"):
        save_model(Scan(CONFIG), tmp_path, Vocabulary(["dog"]))
