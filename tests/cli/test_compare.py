"""crossret compare: all models by default, mistakes in one line, and going on after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from crossret.hyperparameters import MODEL_CONFIGS
from tests.cli.command import Cli, start

TINY = "scan embed_dim=8 word_dim=4 batch_size=16 learning_rate=0.01"


def test_variants_and_conditions_are_what_is_typed(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def remember(variants: Any, conditions: Any, output: Path, *, command: str, console: Any) -> None:
        seen[:] = [[variant.name for variant in variants], conditions, command]

    monkeypatch.setattr("crossret.comparison.comparison.run_comparison", remember)
    output = tmp_path / "out"
    assert crossret("compare", data, "--output", output) == 0
    assert seen[0] == list(MODEL_CONFIGS)
    options = ["--epochs", "3", "--seed", "2", "--threads", "1", "--split", "dev"]
    assert crossret("compare", data, "han p=2 layers=0", "scan", "--output", output, *options) == 0
    names, conditions, command = seen
    assert names == ["han layers=0 p=2", "scan"]
    assert (conditions.data, conditions.split, conditions.seed) == (data, "dev", 2)
    assert (conditions.epochs, conditions.threads) == (3, 1)
    assert command == (
        f"crossret compare {data} 'han p=2 layers=0' scan --output {output} "
        "--preset scenes --split dev --seed 2 --epochs 3 --threads 1"
    )


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("scan layers=1", "variant 'scan layers=1': scan has no field 'layers'"),
        ("scan margin=-1", "variant 'scan margin=-1': margin must be at least 0, not -1.0"),
        (
            "han clusters=4",
            "variant 'han clusters=4': {data}/train_ims.npy: images have 3 regions, fewer than the model's clusters 4",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    crossret: Cli, data: Path, tmp_path: Path, variant: str, message: str
) -> None:
    assert crossret("compare", data, "scan", variant, "--output", tmp_path / "out") == 2
    assert crossret.err == f"crossret: {message.format(data=data)}\n"
    assert not (tmp_path / "out").exists()


def test_the_same_command_goes_on(crossret: Cli, data: Path, tmp_path: Path) -> None:
    """After Ctrl-C, and once more after SIGTERM."""
    output = tmp_path / "out"
    command = ["compare", data, f"{TINY} epochs=8", "--output", output, "--threads", "1"]
    seconds, logged = 0.0, 0
    for ending, what in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")):
        with start(*command) as process:
            while process.poll() is None and not any(log.stat().st_size > logged for log in output.glob("*/log.jsonl")):
                time.sleep(0.01)
            process.send_signal(ending)
            if ending == signal.SIGTERM:  # a scheduler's is for all processes
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), ending)
            _, err = process.communicate()
        assert process.returncode == 128 + ending, err
        assert f"crossret: {what}; {output} holds what was done, the same command goes on\n" in err
        assert "Traceback" not in err
        (directory,) = output.iterdir()
        assert (directory / "checkpoint.safetensors").exists()
        assert not (directory / "result.json").exists()
        before = json.loads((directory / "training.json").read_text())
        assert (before["finished"], before["seconds_known"]) == (False, True)
        assert "running" not in before  # as a training that was killed would leave it
        assert before["seconds"] > seconds
        seconds, logged = before["seconds"], (directory / "log.jsonl").stat().st_size

    assert crossret(*command) == 0
    (result,) = json.loads((output / "compare.json").read_text())["variants"]
    assert result["training"]["epochs"] == 8
    assert result["training"]["sessions"] == 3
    assert result["training"]["seconds"] > seconds
    assert result["evaluation"]["pointing_game"] is None  # no rendered scenes
