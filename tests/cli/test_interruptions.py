"""Ctrl-C is one line and exit code 130, which says how to go on; an interrupted training goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.command import ENVIRONMENT, TINY, Cli, start
from tests.processes import started


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["evaluate", "{trained}", "{data}"], ""),
        (["demo", "--output", "{tmp}/d"], "; {tmp}/d holds what was done, the same command starts anew"),
        (["train", "{data}", "--output", "{tmp}/run"], "; there is no checkpoint yet"),
    ],
)
def test_ctrl_c_is_one_line(
    crossret: Cli,
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    left: str,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for function in ("evaluation.encode_dataset", "demo.run_demo", "training.train"):
        monkeypatch.setattr(f"crossret.{function}", interrupted)
    places = {"data": data, "trained": trained, "tmp": tmp_path}
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 130
    assert crossret.err == f"crossret: interrupted{left.format_map(places)}\n"
    assert crossret.out == ""


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    code = (
        "import builtins, signal; from crossret.__main__ import main\n"
        "load = builtins.__import__\n"
        "def pressed(name, *others):\n"
        "    if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "    return load(name, *others)\n"
        "builtins.__import__ = pressed\n"
        "main()"
    )
    with started([sys.executable, "-c", code], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        _, err = process.communicate()
    assert (process.returncode, err) == (130, "crossret: interrupted\n")


def test_an_interrupted_training_resumes_to_the_same_weights(crossret: Cli, data: Path, tmp_path: Path) -> None:
    """By SIGTERM, which often comes twice."""
    command = ["train", data, *TINY, "--epochs", "4", "--threads", "1"]
    assert crossret(*command, "--output", tmp_path / "whole") == 0

    stopped = tmp_path / "stopped"
    with start(*command, "--output", stopped) as process:
        log = stopped / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 143, err
    assert "crossret: ended by SIGTERM; to go on, repeat the command with --resume\n" in err
    assert "Traceback" not in err
    before = load_file(stopped / "checkpoint.safetensors")

    assert crossret(*command, "--output", stopped, "--resume") == 0
    whole, resumed = (load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "stopped"))
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name
    assert any(not torch.equal(tensor, before[name]) for name, tensor in whole.items())
