"""The crossret command as tests run it: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from crossret import cli
from tests.processes import started

TINY = ["--embed-dim", "8", "--word-dim", "4", "--batch-size", "16", "--learning-rate", "0.01"]
TINY_MODELS = {
    "scan": ["--cross-attention", "ensemble"],
    "sman": ["--no-location", "--dropout", "0.1"],
    "han": ["--heads", "2", "--text-encoder", "gru", "--clusters", "none"],
    "mhsan": ["--feature-dim", "8", "--attention-dim", "4", "--heads", "2", "--text-from-epoch", "0"],
    "oan": ["--heads", "2", "--text-encoder", "lstm", "--no-inter-attention"],
    "vse": ["--measure", "order", "--use-abs"],
}
COMMANDS = [
    "demo",
    "render-scenes",
    "cluster-regions",
    "perturb",
    "presets",
    "train",
    "compare",
    "encode",
    "evaluate",
    "explain",
    "score",
    "search",
    "import-scan",
    "import-features",
]
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


def start(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "crossret", *map(str, arguments)]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
