"""crossret train: presets and options, progress, and what resuming refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crossret.cli.options import spelling
from crossret.hyperparameters import MODEL_CONFIGS, ParameterGroup, TrainingConfig
from crossret.hyperparameters.settings import settable, spelt
from crossret.training import load_model
from tests.cli.command import TINY, Cli


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configs of trainings that were asked for, instead of them."""
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append((model.config, config))
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    return seen


@pytest.mark.parametrize(
    ("options", "schedule", "lambda_softmax"),
    [
        ([], (30, (15,), 2e-4), 9),
        (["--preset", "coco_i2t_avg", "--epochs", "3", "--decay-epochs", "2"], (3, (2,), 5e-4), 4),
        (["--set", "decay_epochs=2,5 learning_rate=0.1"], (30, (2, 5), 0.1), 9),
        (["--set", "cross_attention=i2t"], (30, (15,), 2e-4), 4),
        (["--set", "cross_attention=i2t", "--set", "lambda_softmax=7"], (30, (15,), 2e-4), 7),
        (["--set", "cross_attention=i2t", "--preset", "f30k_t2i_avg"], (30, (15,), 2e-4), 9),
        (["--model", "han", "--preset", "coco", "--set", "lambda_softmax=4"], (20, (10,), 1e-4), 4),
    ],
)
def test_settings_left_out_are_the_preset_s(
    crossret: Cli,
    data: Path,
    tmp_path: Path,
    seen: list[Any],
    options: list[str],
    schedule: tuple[int, tuple[int, ...], float],
    lambda_softmax: float,
) -> None:
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 130
    ((model, how),) = seen
    assert (how.epochs, how.decay_epochs, how.learning_rate) == schedule
    assert model.lambda_softmax == lambda_softmax


def test_every_option_of_the_schedule_is_followed(crossret: Cli, data: Path, tmp_path: Path, seen: list[Any]) -> None:
    """And there are few enough options to be read."""
    changed = {
        "epochs": 3, "decay": "cosine", "decay_epochs": (1, 2), "batch_size": 9, "accumulate": 2, "encode_chunk": 4,
        "optimizer": "adadelta", "learning_rate": 0.5, "warmup_steps": 6, "weight_decay": 0.25, "gradient_norm": None,
        "parameter_groups": (ParameterGroup("text", 0.5),), "amp": True, "tf32": True, "same_image_negatives": True,
        "select_by": "r1", "patience": 5, "log_every": 7, "checkpoint_every": 8,
    }  # fmt: skip
    assert changed.keys() == settable(TrainingConfig).keys()
    options = [f"{spelling(name)} {spelt(value)}" for name, value in changed.items() if not isinstance(value, bool)]
    options += [spelling(name, value) for name, value in changed.items() if isinstance(value, bool)]
    assert crossret("train", data, "--output", tmp_path / "run", "--seed", "4", *" ".join(options).split()) == 130
    ((_, how),) = seen
    assert {name: getattr(how, name) for name in changed} == changed
    assert how.seed == 4
    assert crossret("train", "--help") == 0
    names = set(re.findall(r"^  (--[\w-]+)", crossret.out, re.M))
    assert len(names) <= 45


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log", "csv", "--log", "excel"], "--log must be one of csv, tensorboard, wandb, not 'excel'"),
        (["--set", "clusters=3"], "clusters: scan has no such setting; han has"),
        (["--set", "margin"], "'margin' is not of the form field=value"),
        (["--set", "epochs=1", "--epochs", "2"], "epochs is set twice"),
        (["--learning-rate", "nan"], "learning_rate must be a number, not 'nan'"),
        (
            ["--set", "lambda_lse=5"],
            "lambda_lse=5 makes no difference to this scan: leave it out, or choose pooling=lse",
        ),
        (["--model", "mhsan", "--set", "feature_dim=16777216"], "make a model that takes"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    crossret: Cli, data: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 2
    assert message in crossret.err
    assert crossret.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_word_vectors_are_a_start(crossret: Cli, data: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("picture 1 2 3 4\nzebra 5 6 7 8\n")
    options = [*TINY[:4], "--epochs", "1", "--learning-rate", "1e-30", "--word-vectors", vectors]
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 0, crossret.err
    model, vocabulary = load_model(tmp_path / "run" / "best")
    assert model.text.embed.weight[vocabulary.word2idx["picture"]].tolist() == [1, 2, 3, 4]
    assert f"{vectors}: vectors of 1 of the {len(vocabulary)} words\n" in crossret.out
    # A resumed training has its checkpoint's.
    vectors.write_text("picture 9 9 9 9\n")
    assert crossret("train", data, "--output", tmp_path / "run", *options, "--epochs", "2", "--resume") == 0, (
        crossret.err
    )
    model, _ = load_model(tmp_path / "run" / "best")
    assert model.text.embed.weight[vocabulary.word2idx["picture"]].tolist() == [1, 2, 3, 4]
    assert "vectors of" not in crossret.out


def test_what_presets_lists_can_be_typed(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert crossret("presets") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in crossret.out.splitlines() if "│" in line]
    assert [row[1] for row in rows] == [name for config in MODEL_CONFIGS.values() for name in config.presets]
    assert rows[0][2] == "the defaults"
    _, preset, fields, schedule = rows[-1]
    command = ["train", data, "--output", tmp_path / "run", "--model", "vse"]
    assert crossret(*command, "--preset", preset) == crossret(*command, "--set", f"{fields} {schedule}") == 130
    assert seen[0] == seen[1]


def test_no_bar_is_drawn_into_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert crossret("train", data, "--output", tmp_path / "run", "--epochs", "2", *TINY) == 0
    lines = [line for line in crossret.err.splitlines() if line[0] not in "┌│└"]  # the summary
    assert [line.split("  ")[0] for line in lines] == ["epoch 1", "epoch 2"]


def test_features_are_held_by_gpus_alone(crossret: Cli, data: Path, tmp_path: Path, seen: list[Any]) -> None:
    command = ["train", data, "--output", tmp_path / "run", "--gpu-features", "2"]
    assert crossret(*command, "--device", "cpu") == 2
    assert crossret.err == "crossret: --gpu-features makes no difference on the CPU\n"
    assert not seen
