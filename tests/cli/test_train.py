"""crossret train: presets and options, progress, and what resuming refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.presets import SCAN_PRESETS
from tests.cli.command import TINY, Cli


def test_train_follows_preset_and_options(trained: Path) -> None:
    config = json.loads((trained / "best" / "config.json").read_text())["config"]
    assert (config["cross_attention"], config["pooling"], config["lambda_lse"]) == ("i2t", "lse", 5.0)
    assert (config["embed_dim"], config["word_dim"]) == (8, 4)


@pytest.mark.parametrize(
    ("options", "schedule", "lambda_softmax"),
    [
        ([], (30, 15, 2e-4), 9),
        (["--preset", "coco_t2i_lse"], (20, 10, 5e-4), 9),
        (["--preset", "coco_i2t_avg", "--epochs", "3", "--decay-epoch", "2"], (3, 2, 5e-4), 4),
        (["--preset", "coco_i2t_avg", "--learning-rate", "0.1"], (20, 10, 0.1), 4),
        (["--cross-attention", "i2t"], (30, 15, 2e-4), 4),
        (["--cross-attention", "i2t", "--lambda-softmax", "7"], (30, 15, 2e-4), 7),
        (["--cross-attention", "i2t", "--preset", "f30k_t2i_avg"], (30, 15, 2e-4), 9),
    ],
)
def test_options_left_out_are_the_preset_s(
    crossret: Cli,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    schedule: tuple[int, int, float],
    lambda_softmax: float,
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append((config.epochs, config.decay_epoch, config.learning_rate))
        seen.append(model.config.lambda_softmax)
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 130
    assert seen == [schedule, lambda_softmax]


def test_help_of_train_lists_presets_and_schedules(crossret: Cli) -> None:
    assert crossret("train", "--help") == 0
    text = " ".join(crossret.out.split())
    for preset in SCAN_PRESETS:
        assert preset in text
    for default in ("by default 30 (f30k), 20 (coco)", "by default 0.0002 (f30k), 0.0005 (coco)"):
        assert default in text
    assert "two models trained apart" in text


def test_no_bar_is_drawn_into_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert crossret("train", data, "--output", tmp_path / "run", "--epochs", "2", *TINY) == 0
    assert [line.split("  ")[0] for line in crossret.err.splitlines()] == ["epoch 1", "epoch 2"]


def test_resuming_with_other_threads_is_one_line(crossret: Cli, data: Path, tmp_path: Path) -> None:
    command = ["train", data, *TINY, "--output", tmp_path]
    assert crossret(*command, "--epochs", "1", "--threads", "1") == 0
    try:
        assert crossret(*command, "--epochs", "1", "--threads", "2", "--resume") == 0
    finally:
        torch.set_num_threads(1)
    assert crossret.err.startswith("crossret: warning: ")
    assert "written with 1 thread" in crossret.err
    assert crossret.err.count("\n") == 1


def test_resuming_with_other_data_is_refused(crossret: Cli, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    command = ["train", copy, *TINY, "--output", tmp_path / "run", "--epochs", "1"]
    assert crossret(*command) == 0
    captions = (copy / "dev_caps.txt").read_text()
    (copy / "dev_caps.txt").write_text(captions.replace("picture 3", "picture 4", 1))
    assert crossret(*command, "--resume") == 2
    assert "was trained with development data = " in crossret.err
