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
from crossret.cli.application import app
from tests.cli.command import Cli

SCORE = ["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"]
SEARCH = ["search", "{data}", "--model", "{trained}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "{data}"], "Missing option '--output'"),
        (["train", "{tmp}/absent", "--output", "{tmp}/run"], "absent"),
        (["train", "{tmp}", "--output", "{tmp}/run"], "train_ims.npy: no such file"),
        (["train", "{data}", "--output", "{tmp}/run", "--preset", "f30k"], "preset must be one of f30k_t2i_avg"),
        (["train", "{data}", "--output", "{tmp}/run", "--pooling", "mean"], "--pooling"),
        (["train", "{data}", "--output", "{tmp}/run", "--epochs", "many"], "--epochs"),
        (["train", "{data}", "--output", "{tmp}/run", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "{data}", "--output", "{tmp}/run", "--lambda-softmax", "-1"], "lambda_softmax"),
        (["train", "{data}", "--output", "{tmp}/run", "--learning-rate", "nan"], "--learning-rate': must be a number"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--epochs", "1_0"],
            "--epochs': must be a whole number, not '1_0'",
        ),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--decay-epoch", "2.0"],
            "--decay-epoch': must be a whole number",
        ),
        (["train", "{data}", "--output", "{tmp}/run", "--rank-timeout", "inf"], "--rank-timeout': must be a number"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", "1.0"], "--seed': must be a whole number, not '1.0'"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--learning-rate", "1e300"],
            "learning_rate must be at most 16777216, not 1e+300",
        ),
        (["train", "{data}", "--output", "{tmp}/run", "--model", "han", "--p", "1e308"], "p must be at most 16777216"),
        (["train", "{data}", "--output", "{tmp}/run", "--epochs", str(10**30)], "epochs must be at most 9.0071993e+15"),
        (["train", "{spoilt}", "--output", "{tmp}/run"], "{spoilt}/train_ims.npy: item 7 has features that are not"),
        (["compare", "{data}", "scan margin=1e300", "--output", "{tmp}/run"], "margin must be at most 16777216"),
        (["compare", "{data}", "--split", "../x", "--output", "{tmp}/run"], "split must be a name, 1 to 100 bytes"),
        (["encode", "{data}", "--model", "{trained}", "--split", "", "--output", "{tmp}/run"], "split must be a name"),
        (["import-features", "{tmp}/run", "{data}/dev_ims.npy", "--split", "a/b"], "split must be a name, 1 to 100"),
        ([*SEARCH, "--caption", "a " * 1025], "--caption 1: the caption has 1,025 words, more than the 1,024 that"),
        ([*SCORE, "--lambda-softmax", "1e300"], "lambda_softmax must be at most 16777216, not 1e+300"),
        (["train", "{data}", "--output", "{tmp}/run", "--resume"], "checkpoint.safetensors"),
        (["train", "{data}", "--output", "{trained}", "--embed-dim", "8"], "there is a training already"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", "-1"], "--seed': must be at least 0, not -1"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", str(2**63)], "--seed': must be at most 922"),
        (["train", "{data}", "--output", "{tmp}/run", "--threads", str(10**30)], "--threads"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--embed-dim", "16777216", "--word-dim", "8"],
            "embed_dim 167772",
        ),
        (["train", "{data}", "--output", "{tmp}/run", "--preset", "f30k_sum_max_i2t", "--pooling", "lse"], "--pooling"),
        (["train", "{data}", "--output", "{tmp}/run", "--i2t-pooling", "lse"], "--i2t-pooling makes no difference"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--model", "scam"],
            "--model must be one of scan, sman, han, mhsan",
        ),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--model", "oan", "--preset", "vg"],
            "preset must be one of f30k, f30",
        ),
        (["train", "{data}", "--output", "{tmp}/run", "--decay-epoch", "3", "--decay-epoch", "2"], "decay_epochs must"),
        (["train", "{data}", "--output", "{tmp}/run", "--word-vectors", "{tmp}/absent.txt"], "--word-vectors"),
        (["train", "{data}", "--output", "{tmp}/run", "--word-vectors", "{text}"], "train_caps.txt"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--region-count", "4"],
            "{data}/train_ims.npy: images have 3 regions, fewer than the model's region_count 4",
        ),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--model", "han", "--clusters", "4"],
            "{data}/train_ims.npy: images have 3 regions, fewer than the model's clusters 4",
        ),
        (["evaluate", "{trained}", "{fold}", "--five-fold"], "--five-fold: the 7 images"),
        ([*SCORE, "--sum-max", "--lambda-softmax", "9"], "--lambda-softmax makes no difference"),
        ([*SCORE, "--lambda-softmax", "-5"], "lambda_softmax must be greater than 0, not -5.0"),
        ([*SCORE, "--lambda-lse", "5"], "--lambda-lse makes no difference"),
        (["evaluate", "{trained}", "{data}", "--device", "cpu:0"], "--device must be cpu, cuda or cuda:1"),
        (["explain", "{trained}", "{data}", "--device", "cuda:-1"], "--device must be cpu, cuda or cuda:1"),
        (["evaluate", "{tmp}", "{data}"], "model.safetensors: no such file"),
        (["evaluate", "{trained}", "{data}", "--split", "testall"], "testall_ims.npy: no such file"),
        (["evaluate", "{trained}", "{data}", "--json", "{tmp}/absent/figures.json"], "no directory {tmp}/absent"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/absent/y.npy"], "{tmp}/absent"),
        (["score", "--regions", "{tmp}/x.npy", "--words", "{tmp}/x.npy", "--output", "{tmp}/y.npy"], "x.npy"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"], "not a readable .npy file"),
        (["search", "{data}"], "exactly one of --queries, --words, --regions is needed"),
        (["search", "{data}", "--words", "{text}"], "{data}: no features.npy, and no values.npy with offsets.npy"),
        (["search", "{data}", "--caption", "a"], "--caption needs --model"),
        (["search", "{data}", "--words", "{text}", "--device", "cpu"], "--device needs --model"),
        ([*SEARCH, "--caption", "a", "--device", "gpu"], "--device must be cpu, cuda or cuda:1"),
        ([*SEARCH], "exactly one of --caption, --captions, --image, --queries, --words, --regions is needed"),
        ([*SEARCH, "--caption", "a", "--image", "1"], "exactly one of --caption, --captions, --image"),
        ([*SEARCH, "--caption", "a", "--sum-max"], "--sum-max is for a corpus of features, without --model"),
        ([*SEARCH, "--caption", "a", "--caption", " "], "--caption 2: the caption is empty"),
        ([*SEARCH, "--caption", "a", "-k", "0"], "-k"),
        ([*SEARCH, "--captions", "{data}/test_ims.npy"], "test_ims.npy, line 1: not UTF-8"),
        ([*SEARCH, "--image", "10"], "image 10: the corpus has images 0 to 9"),
        ([*SEARCH, "--image", "1.0"], "--image': must be a whole number, not '1.0'"),
        ([*SEARCH, "--image", "-1"], "image -1: the corpus has images 0 to 9"),
        ([*SEARCH, "--caption", "a", "--split", "val"], "val_ims.npy: no such file"),
        ([*SEARCH, "--captions", "{text}", "--output", "{text}"], "would take the place of this input"),
        ([*SEARCH, "--caption", "a", "--output", "{data}/test_ims.npy"], "would take the place of this input"),
        (
            [*SEARCH, "--caption", "a", "--output", "{trained}/best/model.safetensors"],
            "model.safetensors: what is written would take the place of this input",
        ),
        ([*SEARCH, "--caption", "a", "--output", "{tmp}/absent/found.jsonl"], "no directory {tmp}/absent"),
        (["render-scenes", "{text}"], "train_caps.txt"),
        (["render-scenes", "{tmp}/scenes", "--train", "0"], "--train"),
        (["demo", "--output", "{tmp}/demo", "--images", "1"], "--images"),
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
TRAIN = ["train", "{data}", "--output", "{tmp}/run"]


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "arguments",
    [
        ["{hostile}"],
        ["train", "--{hostile}"],
        ["train", "{hostile}", "--output", "{tmp}/run"],
        [*TRAIN, "--epochs", "{hostile}"],
        [*TRAIN, "--pooling", "{hostile}"],
        [*TRAIN, "--preset", "{hostile}"],
        [*TRAIN, "--model", "{hostile}"],
        [*TRAIN, "--config", "{tmp}/key.toml"],
        [*TRAIN, "--config", "{tmp}/value.toml"],
        ["evaluate", "{trained}", "{data}", "--device", "{hostile}"],
        ["evaluate", "{trained}", "{data}", "--split", "{hostile}"],
        ["compare", "{data}", "{hostile}", "--output", "{tmp}/run"],
        ["compare", "{data}", "scan pooling={hostile}", "--output", "{tmp}/run"],
        ["compare", "{data}", "scan {hostile}=1", "--output", "{tmp}/run"],
        ["perturb", "{data}", "{tmp}/run", "--drop", "{hostile}"],
        ["search", "{tmp}", "--words", "{tmp}/words.npy"],
        ["import-scan", "{tmp}/x.pth", "{tmp}/run", "--vocabulary", "{tmp}/vocab.json"],
        ["evaluate", "{tmp}/model", "{data}"],
        ["evaluate", "{tmp}/tensors", "{data}"],
    ],
    ids=" ".join,
)
def test_text_of_others_is_shown_and_not_obeyed(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], hostile: str
) -> None:
    (tmp_path / "key.toml").write_text(f"{json.dumps(hostile)} = 1\n")
    (tmp_path / "value.toml").write_text(f"pooling = {json.dumps(hostile)}\n")
    (tmp_path / "shards.json").write_text(json.dumps({"dim": 2, "shards": [{"path": f"/{hostile}", "items": 1}]}))
    np.save(tmp_path / "words.npy", np.zeros((1, 1, 2), np.float32))
    (tmp_path / "vocab.json").write_text(json.dumps({"word2idx": {hostile: "x"}, "idx2word": {}, "idx": 1}))
    weights, meta = torch.zeros(1), {"model": json.dumps({"model": hostile, "config": {}}), "words": "[]"}
    save_file({"x": weights}, (tmp_path / "model").mkdir() or tmp_path / "model" / "model.safetensors", meta)
    described = {"x" + hostile: weights}
    save_file(described, (tmp_path / "tensors").mkdir() or tmp_path / "tensors" / "model.safetensors", {})
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
        ("train", "--epoch", "--epochs"),
        ("train", "--num_epochs", "--epochs"),
        ("train", "--bs", "--batch-size"),
        ("train", "--batch", "--batch-size"),
        ("train", "--gpu", "--device"),
        ("evaluate", "--cuda", "--device"),
        ("train", "--out", "--output"),
        ("search", "-o", "--output"),
        ("search", "--topk", "-k"),
        ("search", "--top-k", "-k"),
        ("train", "--wd", "--weight-decay"),
        ("train", "--hidden-size", "--embed-dim"),
        ("train", "--dim", "--embed-dim"),
        ("train", "--grad-clip", "--gradient-norm"),
        ("render-scenes", "--jobs", "--workers"),
        ("train", "--num-workers", "--threads"),
        ("train", "--batch_size", "--batch-size"),
        ("train", "--Epochs=3", "--epochs"),
        ("train", "--temperature", "--lambda-softmax"),
        ("train", "--vocab", "--vocabulary"),
        ("evaluate", "--model", "RUN, which is given without a name"),
        ("train", "--data", "DATA, which is given without a name"),
    ],
)
def test_an_option_of_another_name_is_suggested_by_what_it_means(
    crossret: Cli, command: str, typed: str, meant: str
) -> None:
    assert crossret(command, typed, "1") == 2
    assert crossret.err == f"crossret: No such option: {typed.split('=')[0]}; did you mean {meant}?\n"


@pytest.mark.parametrize(
    ("command", "typed", "message"),
    [
        ("search", "--lr", "No such option: --lr"),  # it learns nothing
        ("train", "--epohcs", "No such option: --epohcs (Possible options: --"),  # by spelling, as ever
        ("train", "--frobnicate", "No such option: --frobnicate"),
        ("train", "--seed", "Option '--seed' requires an argument."),
    ],
)
def test_of_what_a_command_has_not_nothing_is_suggested(crossret: Cli, command: str, typed: str, message: str) -> None:
    assert crossret(command, typed) == 2
    assert crossret.err.startswith(f"crossret: {message}")
    assert "did you mean" not in crossret.err


def test_every_name_that_is_suggested_is_one_of_an_option(crossret: Cli) -> None:
    commands = typer.main.get_command(app).commands.values()
    there = {name for command in commands for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert set(suggestions._CALLED) <= there
    for option, others in suggestions._CALLED.items():
        assert not {f"--{name}" for name in others.split()} & {option}


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
