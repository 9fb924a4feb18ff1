"""crossret train: presets and options, progress, and what resuming refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crossret.cli.options import spelling
from crossret.hyperparameters import MODEL_CONFIGS, ParameterGroup, TrainingConfig
from crossret.hyperparameters.settings import settable, spelt
from crossret.training import load_model
from tests.cli.command import TINY, Cli
from tests.cli.conftest import Asked


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
    asked: list[Asked],
    options: list[str],
    schedule: tuple[int, tuple[int, ...], float],
    lambda_softmax: float,
) -> None:
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 130
    (training,) = asked
    how = training.schedule
    assert (how.epochs, how.decay_epochs, how.learning_rate) == schedule
    assert training.model.lambda_softmax == lambda_softmax


def test_every_option_of_the_schedule_is_followed(
    crossret: Cli, data: Path, tmp_path: Path, asked: list[Asked]
) -> None:
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
    how = asked[0].schedule
    assert {name: getattr(how, name) for name in changed} == changed
    assert how.seed == 4
    assert crossret("train", "--help") == 0
    names = set(re.findall(r"^  (--[\w-]+)", crossret.out, re.M))
    assert len(names) <= 45


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
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Asked]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert crossret("presets") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in crossret.out.splitlines() if "│" in line]
    assert [row[1] for row in rows] == [name for config in MODEL_CONFIGS.values() for name in config.presets]
    assert rows[0][2] == "the defaults"
    _, preset, fields, schedule = rows[-1]
    command = ["train", data, "--output", tmp_path / "run", "--model", [*MODEL_CONFIGS][-1]]
    assert crossret(*command, "--preset", preset) == crossret(*command, "--set", f"{fields} {schedule}") == 130
    assert asked[0] == asked[1]


def test_no_bar_is_drawn_into_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert crossret("train", data, "--output", tmp_path / "run", "--epochs", "2", *TINY) == 0
    lines = [line for line in crossret.err.splitlines() if line[0] not in "┌│└"]  # the summary
    assert [line.split("  ")[0] for line in lines] == ["epoch 1", "epoch 2"]
