"""Model directories: there and back, and what a reader is told about files that do not fit."""

from __future__ import annotations

import itertools
import json
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


def test_the_weights_file_is_all_that_is_needed(saved: Path) -> None:
    (saved / "config.json").write_text(json.dumps(json.loads((saved / "config.json").read_text())))
    (saved / "vocabulary.json").unlink()
    model, vocabulary = load_model(saved)
    assert model.config == CONFIG
    assert vocabulary.idx2word == VOCABULARY.idx2word


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        (
            "config.json",
            '"lse"',
            '"avg"',
            "config.json: its config.pooling is 'avg', but 'lse' in model.safet",
        ),
        (
            "config.json",
            "{",
            '{"seed": 1,',
            "config.json: its seed is 1, but None in model.safetensors, ",
        ),
        ("config.json", "{", "", "config.json: not JSON"),
        ("config.json", "{", "[{", "config.json: not JSON"),
        ("vocabulary.json", '"dog"', '"bird"', "vocabulary.json: its words are not those in model.safetensors, which"),
        ("vocabulary.json", "{", "", "vocabulary.json: not JSON"),
    ],
)
def test_a_copy_that_says_something_else_is_not_passed_over(
    saved: Path, name: str, before: str, after: str, message: str
) -> None:
    path = saved / name
    path.write_text(path.read_text().replace(before, after, 2 if before == '"dog"' else 1))
    with pytest.raises(ValueError, match=message):
        load_model(saved)
    save_model(Scan(CONFIG), saved, VOCABULARY)
    assert load_model(saved)[0].config == CONFIG


def test_a_missing_model_is_named(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors: no such file"):
        load_model(saved)


OTHER, OTHER_VOCABULARY = (
    ScanConfig(image_dim=5, vocabulary_size=6, embed_dim=2, word_dim=3),
    Vocabulary(["dog", "cow"]),
)


def fingerprint(directory: Path) -> tuple[ScanConfig, list[str], float]:
    model, vocabulary = load_model(directory)
    return model.config, vocabulary.idx2word, sum(float(tensor.sum()) for tensor in model.state_dict().values())


def alternate(directory: Path) -> None:
    """Save one model over the other for ever: what is killed."""
    torch.manual_seed(0)
    pair = (Scan(CONFIG), VOCABULARY), (Scan(OTHER), OTHER_VOCABULARY)
    while True:
        for model, vocabulary in pair:
            save_model(model, directory, vocabulary)


@pytest.mark.parametrize("replacements", [0, 1, 2])
def test_a_save_that_fails_leaves_the_old_model_or_the_new(
    saved: Path, tmp_path: Path, replacements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    other = Scan(OTHER)
    save_model(other, tmp_path / "other", OTHER_VOCABULARY)
    old, new = fingerprint(saved), fingerprint(tmp_path / "other")
    replace, calls = os.replace, itertools.count()

    def failing(*paths: str) -> None:
        if next(calls) == replacements:
            raise OSError("the disk is gone")
        replace(*paths)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        save_model(other, saved, OTHER_VOCABULARY)
    assert fingerprint(saved) == (new if replacements else old)


def test_killed_again_and_again_there_is_always_one_whole_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = []
    for name, config, vocabulary in (("a", CONFIG, VOCABULARY), ("b", OTHER, OTHER_VOCABULARY)):
        save_model(Scan(config), tmp_path / name, vocabulary)
        whole.append(fingerprint(tmp_path / name))
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
    save_model(load_model(tmp_path / "a")[0], tmp_path / "model", VOCABULARY)
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert len(output) == 12
    assert set(output) <= {repr(one) for one in whole}


def forge(saved: Path, description: str | None = None, words: str | None = None, **tensors: torch.Tensor) -> None:
    """A model as a stranger could write it."""
    path = saved / "model.safetensors"
    types, metadata = read_header(path)
    changes = {"model": description, "words": words}
    weights = {**read_tensors(path, types), **tensors}
    write_tensors(path, weights, {**metadata, **{key: text for key, text in changes.items() if text is not None}})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # A terabyte that is never allocated: the shapes in the weights' header disagree first.
        ('"embed_dim": 4', '"embed_dim": 16000000', r"tensor 'image.fc.weight' is \(4, 5\)"),
        ('"bidirectional": true', '"bidirectional": false', "unexpected tensor 'text.rnn"),
        ('"embed_dim": 4', '"embed_dim": -4', "embed_dim must be at least 1"),
        ('"embed_dim": 4', f'"embed_dim": {10**250}', "embed_dim must be at most"),
        ('"embed_dim": 4', '"embed_dim": ' + "1" * 5000, "hyper-parameters: not JSON .a whole number of 5000 digits"),
        ('"margin": 0.2', '"margin": ' + "1" * 401, "hyper-parameters: not JSON .a whole number of 401 digits"),
        ('"vocabulary_size": 7', '"vocabulary_size": 6', "the vocabulary has 7 words, but the model was made for 6"),
        ('"embed_dim": 4', '"size": 4', "ScanConfig has no field 'size'"),
        ('"embed_dim": 4', '"\\ud800": 4', "hyper-parameters: not JSON"),
        ('"model": "scan"', '"model": "skan"', "'model' must be one of scan, sman, han, mhsan, oan, vse, not 'skan'"),
        ('"model": "scan"', '"model": []', "'model' must be one of scan"),
        ('"model": "scan"', '"name": "scan"', "hyper-parameters must be an object of 'model' and 'config'"),
        ('"model": "scan",', "", "hyper-parameters must be an object of 'model' and 'config'"),
        ('"model"', "model", "hyper-parameters: not JSON"),
        ('"model"', "[" * 200_000, "hyper-parameters: not JSON"),
    ],
)
def test_forged_hyper_parameters_are_errors(saved: Path, old: str, new: str, message: str) -> None:
    description = (saved / "config.json").read_text("utf-8")
    assert old in description
    forge(saved, description.replace(old, new))
    with pytest.raises(ValueError, match=rf"model/model.safetensors: {message}"):
        load_model(saved)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("[" * 200_000, "words: not JSON .nested too deeply"),
        ("{}", "words must be a list of strings"),
        ("[1, 2]", "words must be a list of strings"),
        ('["<pad>", "dog"]', "words must begin with <pad>, <start>, <end>, <unk>, not"),
        ('["<pad>", "<start>", "<end>", "<unk>", "dog", "cat", "dog"]', "words: 'dog' occurs more than once"),
        ('["<pad>", "<start>", "<end>", "<unk>", "dog"]', "the vocabulary has 5 words, but the model was made for 7"),
        ('["<pad>", "<start>", "<end>", "<unk>", "dog", "cat", "\\udc00"]', "words: not JSON"),
    ],
)
def test_forged_words_are_errors(saved: Path, words: str, message: str) -> None:
    forge(saved, words=words)
    with pytest.raises(ValueError, match=rf"model/model.safetensors: {message}"):
        load_model(saved)


def test_forged_weights_are_errors(saved: Path) -> None:
    forge(saved, **{"text.embed.weight": torch.zeros(7, 3, dtype=torch.float64)})
    with pytest.raises(
        ValueError, match=r"model.safetensors: tensor 'text.embed.weight' is .* torch.float64, expected"
    ):
        load_model(saved)


def test_tensors_of_something_else_are_no_model(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"x": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match=r"model.safetensors: not a model of crossret"):
        load_model(tmp_path)


def test_the_copies_say_what_the_model_is(saved: Path) -> None:
    contents = json.loads((saved / "config.json").read_text("utf-8"))
    assert ScanConfig.from_dict(contents["config"]) == CONFIG
    assert Vocabulary.load(saved / "vocabulary.json").idx2word == VOCABULARY.idx2word


def test_a_vocabulary_of_another_size_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the vocabulary has 5 words, but the model was made for 7"):
        save_model(Scan(CONFIG), tmp_path, Vocabulary(["dog"]))
