"""The page of the papers' tables: every command can be typed, names what there is, and takes the steps that it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from crossret.cli.commands.application import app
from crossret.cli.schedule_options import settings_of_options
from crossret.hyperparameters import MODEL_CONFIGS, TrainingConfig
from crossret.hyperparameters.settings import parse_settings, settable
from tests.kernels.subprocesses import ROOT

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (crossret [^#\n]+)|`(crossret [a-z][^`]+ [^`]+)`", PAGE, re.M)
TRAININGS = sorted({inline for _, inline in COMMANDS if inline.startswith("crossret train")})
OTHERS = sorted({block.strip() or inline for block, inline in COMMANDS} - set(TRAININGS))
GROUP: Any = typer.main.get_command(app)


def parsed(command: str, directory: Path) -> dict[str, Any]:
    """The arguments of a command line by name, as the command itself reads them where its inputs are in a directory."""
    _, name, *arguments = shlex.split(command)
    for argument in arguments:
        path = directory / argument
        if path.suffix in (".txt", ".npy", ".bin", ".json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif "/" in argument:
            path.mkdir(parents=True, exist_ok=True)
    context = GROUP.make_context("crossret", [name])
    found: dict[str, Any] = GROUP.commands[name].make_context(name, arguments, parent=context).params
    return found


def test_the_commands_are_found() -> None:
    assert len(TRAININGS) > 60
    assert any("--five-fold" in command for command in OTHERS)
    assert any("--ensemble" in command for command in OTHERS)
    assert PAGE.count("crossret train data") == sum("crossret train" in inline for _, inline in COMMANDS)


@pytest.mark.parametrize("command", TRAININGS)
def test_every_training_can_be_typed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = parsed(command, tmp_path)
    texts = settings_of_options(arguments["settings"], **{name: arguments[name] for name in settable(TrainingConfig)})
    settings = parse_settings(arguments["model"] or "scan", arguments["preset"], texts)
    settings.config(image_dim=2048, vocabulary_size=9000)
    settings.training()
    # The data set of the features is that of the preset.
    of_preset = arguments["preset"].split("_")[0]
    assert str(arguments["data"]).startswith((f"data/{of_preset}_", "data/shuffled", "data/no_"))


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_command_can_be_typed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parsed(command.replace("runs/NAME", "runs/f30k_t2i_avg"), tmp_path)
    trained = {shlex.split(training)[4] for training in TRAININGS}
    assert set(re.findall(r"runs/(?!NAME)\w+", command)) <= trained


def test_presets_are_named_that_there_are() -> None:
    presets = {preset for config in MODEL_CONFIGS.values() for preset in config.presets}
    assert set(re.findall(r"`((?:f30k|coco)_\w+)`", PAGE)) <= presets
    assert any(preset.endswith("_joint") for preset in presets) or "_joint" not in PAGE
