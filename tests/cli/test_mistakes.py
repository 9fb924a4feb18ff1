"""Every mistake is one line and exit code 2; a bug is not a mistake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

from crossret import cli
from crossret.cli import suggestions
from crossret.cli.commands.application import app
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.settings import settable
from tests.cli.command import Cli

SCORE = ["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"]
SEARCH = ["search", "{trained}", "{data}"]
TRAIN = ["train", "{data}", "--output", "{tmp}/run"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "{data}"], "Missing option '--output'"),
        (["train", "{tmp}/absent", "--output", "{tmp}/run"], "absent"),
        (["train", "{tmp}", "--output", "{tmp}/run"], "train_ims.npy: no such file"),
        ([*TRAIN, "--preset", "f30k"], "preset must be one of f30k_t2i_avg"),
        ([*TRAIN, "--epochs", "many"], "epochs must be a whole number, not 'many'"),
        (["train", "{spoilt}", "--output", "{tmp}/run"], "{spoilt}/train_ims.npy: item 7 has features that are not"),
        ([*SEARCH, "--caption", "a " * 1025], "--caption 1: the caption has 1,025 words, more than the 1,024 that"),
        ([*TRAIN, "--resume"], "checkpoint.safetensors"),
        (["train", "{data}", "--output", "{trained}", "--set", "embed_dim=8"], "there is a training already"),
        ([*TRAIN, "--word-vectors", "{text}"], "train_caps.txt"),
        (["evaluate", "{trained}", "{fold}", "--five-fold"], "--five-fold: the 7 images"),
        (["evaluate", "{tmp}", "{data}"], "model.safetensors: no such file"),
        (["evaluate", "{trained}", "{data}", "--output", "{tmp}/absent/figures.json"], "no directory {tmp}/absent"),
        (["search", "{data}"], "exactly one of --queries, --words, --regions is needed"),
        (["search", "{data}", "--caption", "a"], "--caption needs RUN, a model, before CORPUS"),
        (
            ["search", "{trained}", "{data}", "{data}", "--caption", "a"],
            "{data}: of directories there are",
        ),
        ([*SEARCH], "exactly one of --caption, --captions, --image, --queries, --words, --regions is needed"),
        ([*SEARCH, "--caption", "a", "--sum-max"], "--sum-max is for a corpus of features, without RUN"),
        ([*SEARCH, "--caption", "a", "--caption", " "], "--caption 2: the caption is empty"),
        ([*SEARCH, "--captions", "{data}/test_ims.npy"], "test_ims.npy, line 1: not UTF-8"),
        ([*SEARCH, "--image", "10"], "image 10: the corpus has images 0 to 9"),
        ([*SEARCH, "--captions", "{text}", "--output", "{text}"], "would take the place of this input"),
        (
            [*SEARCH, "--caption", "a", "--output", "{trained}/best/model.safetensors"],
            "model.safetensors: what is written would take the place of this input",
        ),
        (["demo", "--output", "{data}"], "{data}: not empty, and not an earlier demo's"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "fold").mkdir()
    np.save(tmp_path / "fold" / "test_ims.npy", np.zeros((7, 3, 6), np.float32))
    (tmp_path / "fold" / "test_caps.txt").write_text("a picture\n" * 35)
    places = {
        "data": data,
        "fold": tmp_path / "fold",
        "trained": trained,
        "tmp": tmp_path,
        "text": data / "train_caps.txt",
        "spoilt": tmp_path / "spoilt",
    }
    if "{spoilt}" in arguments:
        shutil.copytree(data, tmp_path / "spoilt")
        features = np.load(data / "train_ims.npy")
        features[7, 0, 1] = np.nan
        np.save(tmp_path / "spoilt" / "train_ims.npy", features)
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 2
    assert crossret.err.startswith("crossret: ")
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert crossret.out == ""
    assert not (tmp_path / "run").exists()


HOSTILE = {"controls": "\x1b]0;mine\x07\x1b[2J\r\u202e", "length": "x" * 300_000, "words": "xx yy " * 50_000}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "arguments",
    [
        ["{hostile}"],
        [*TRAIN, "--set", "pooling={hostile}"],
        [*TRAIN, "--config", "{tmp}/key.toml"],
        ["compare", "{data}", "scan {hostile}=1", "--output", "{tmp}/run"],
        ["import-scan", "{tmp}/x.pth", "--output", "{tmp}/run", "--vocabulary", "{tmp}/vocab.json"],
        ["evaluate", "{tmp}/model", "{data}"],
    ],
    ids=" ".join,
)
def test_text_of_others_is_shown_and_not_obeyed(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], hostile: str
) -> None:
    (tmp_path / "key.toml").write_text(f"{json.dumps(hostile)} = 1\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"word2idx": {hostile: "x"}, "idx2word": {}, "idx": 1}))
    weights, meta = torch.zeros(1), {"model": json.dumps({"model": hostile, "config": {}}), "words": "[]"}
    save_file({"x": weights}, (tmp_path / "model").mkdir() or tmp_path / "model" / "model.safetensors", meta)
    places = {"data": data, "trained": trained, "tmp": tmp_path, "hostile": hostile}
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 2
    line = crossret.err.removesuffix("\n")
    assert line.isprintable()
    assert len(line) <= 1010
    assert max(len(word) for word in line.split()) <= 200
    assert line.count("yy") <= 200


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("train", "--lr", "--learning-rate"),
        ("train", "--gpu", "--device"),
        ("search", "-o", "--output"),
        ("train", "--epohcs", "--epochs"),
        ("train", "--layers", "--set layers=..."),
        ("train", "--no-bidirectional", "--set bidirectional=..."),
        ("evaluate", "--model", "RUN, which is given without a name"),
    ],
)
def test_an_option_of_another_name_is_suggested_by_what_it_means(
    crossret: Cli, command: str, typed: str, meant: str
) -> None:
    assert crossret(command, typed, "1") == 2
    assert crossret.err == f"crossret: No such option: {typed}; did you mean {meant}?\n"


@pytest.mark.parametrize(
    ("command", "typed", "message"),
    [
        ("search", "--lr", "No such option: --lr"),  # it learns nothing
        ("train", "--frobnicate", "No such option: --frobnicate"),
        ("train", "--seed", "Option '--seed' requires an argument."),
    ],
)
def test_of_what_a_command_has_not_nothing_is_suggested(crossret: Cli, command: str, typed: str, message: str) -> None:
    assert crossret(command, typed) == 2
    assert crossret.err.startswith(f"crossret: {message}")
    assert "did you mean" not in crossret.err


def test_every_name_that_is_suggested_is_there() -> None:
    commands = typer.main.get_command(app).commands.values()
    there = {name for command in commands for each in command.params for name in (*each.opts, *each.secondary_opts)}
    settings = {name for config in MODEL_CONFIGS.values() for name in settable(config)}
    assert set(suggestions._CALLED) <= there | settings


def test_an_unavailable_backend_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "no-such-backend")
    assert crossret("evaluate", trained, data) == 2
    assert "no-such-backend" in crossret.err


def test_memory_that_cannot_be_had_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.evaluation.encode_dataset", lambda *_, **__: torch.empty(2**60))
    assert crossret("evaluate", trained, data) == 2
    assert "not enough memory" in crossret.err
    assert crossret.err.count("\n") == 1


def test_a_bug_is_not_dressed_up_as_a_mistake(monkeypatch: pytest.MonkeyPatch, data: Path, trained: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("crossret.evaluation.encode_dataset", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["evaluate", str(trained), str(data)])
