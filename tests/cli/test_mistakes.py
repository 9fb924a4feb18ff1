"""Every mistake is one line and exit code 2; a bug is not a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret import cli
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
        (["train", "{data}", "--output", "{tmp}/run", "--learning-rate", "nan"], "learning_rate"),
        (["train", "{data}", "--output", "{tmp}/run", "--resume"], "checkpoint.safetensors"),
        (["train", "{data}", "--output", "{trained}", "--embed-dim", "8"], "there is a training already"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", "-1"], "--seed"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", str(2**63)], "--seed"),
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
        (["search", "{data}"], "of --words and --regions exactly one is needed"),
        (["search", "{data}", "--words", "{text}"], "{data}: no features.npy, and no values.npy with offsets.npy"),
        (["search", "{data}", "--caption", "a"], "--caption needs --model"),
        (["search", "{data}", "--words", "{text}", "--device", "cpu"], "--device needs --model"),
        ([*SEARCH, "--caption", "a", "--device", "gpu"], "--device must be cpu, cuda or cuda:1"),
        ([*SEARCH], "of --caption and --captions and --image exactly one is needed"),
        ([*SEARCH, "--caption", "a", "--image", "1"], "exactly one is needed"),
        ([*SEARCH, "--caption", "a", "--sum-max"], "--sum-max is for a corpus of features, without --model"),
        ([*SEARCH, "--caption", "a", "--caption", " "], "--caption 2: the caption is empty"),
        ([*SEARCH, "--caption", "a", "-k", "0"], "-k"),
        ([*SEARCH, "--captions", "{data}/test_ims.npy"], "test_ims.npy, line 1: not UTF-8"),
        ([*SEARCH, "--image", "10"], "image 10: the corpus has images 0 to 9"),
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
    }
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 2
    assert crossret.err.startswith("crossret: ")
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert crossret.out == ""


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
