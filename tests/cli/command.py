"""The crossret command as tests run it: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import typer

from crossret import cli
from crossret.cli.commands.application import app
from tests.processes import started

TINY = ["--set", "embed_dim=8 word_dim=4", "--batch-size", "16", "--learning-rate", "0.01"]
TINY_MODELS = {
    "scan": ["--set", "cross_attention=ensemble"],
    "sman": ["--set", "location=false", "--set", "dropout=0.1"],
    "han": ["--set", "heads=2 text_encoder=gru clusters=none"],
    "mhsan": ["--set", "feature_dim=8 attention_dim=4 heads=2 text_from_epoch=0"],
    "oan": ["--set", "heads=2 text_encoder=lstm inter_attention=false"],
    "vse": ["--set", "measure=order use_abs=true"],
    "laps": ["--set", "aggregated=2 global_token=true"],
}
COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}  # of a process


class Cli:
    """Runs commands inside this process; keeps what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(argument) for argument in arguments])
        self.out, self.err = self.capsys.readouterr()
        return int(exit_.value.code or 0)

    def refused(self, *arguments: str | Path) -> str:
        """The one line that a command ends with that cannot do what it is asked."""
        assert self(*arguments) == 2, self.err
        assert self.out == ""
        assert self.err.startswith("crossret: ")
        assert self.err.count("\n") == 1
        return self.err


def run(*arguments: str | Path) -> None:
    """A command that a fixture needs, in this process."""
    with pytest.raises(SystemExit) as exit_:
        cli.main([str(argument) for argument in arguments])
    assert not exit_.value.code


def start(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "crossret", *map(str, arguments)]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
