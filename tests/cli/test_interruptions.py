"""Ctrl-C is one line and exit code 130, which says how to go on; an interrupted training goes on."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from crossret.files.tensors import read_header
from tests.cli.command import ENVIRONMENT, TINY, Cli, start
from tests.processes import started, time_limit


@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_ctrl_c_is_one_line(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.evaluation.encode_dataset", interrupted)
    monkeypatch.setattr("crossret.demo.run_demo", interrupted)
    arguments = {"evaluate": [trained, data], "demo": ["--output", tmp_path / "d"]}[command]
    assert crossret(command, *arguments) == 130
    left = f"; {tmp_path / 'd'} holds what was done, the same command starts anew" if command == "demo" else ""
    assert crossret.err.strip() == f"crossret: interrupted{left}"
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


def test_an_interruption_before_the_first_checkpoint_says_so(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", interrupted)
    assert crossret("train", data, "--output", tmp_path / "run") == 130
    assert crossret.err == "crossret: interrupted; there is no checkpoint yet\n"


ENDINGS = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "ended by SIGTERM"),
    signal.SIGHUP: (129, "ended by SIGHUP"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interrupted_training_resumes_to_the_same_weights(
    crossret: Cli, data: Path, tmp_path: Path, ending: signal.Signals
) -> None:
    command = ["train", data, *TINY, "--epochs", "4", "--threads", "1"]
    assert crossret(*command, "--output", tmp_path / "whole") == 0

    stopped = tmp_path / "stopped"
    with start(*command, "--output", stopped) as process:
        log = stopped / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.001)
        process.send_signal(ending)
        if ending != signal.SIGINT:  # they often come in twos
            process.send_signal(ending)
        _, err = process.communicate()
    status, what = ENDINGS[ending]
    assert process.returncode == status, err
    assert f"crossret: {what}; to go on, repeat the command with --resume\n" in err
    assert "Traceback" not in err
    before = load_file(stopped / "checkpoint.safetensors")

    assert crossret(*command, "--output", stopped, "--resume") == 0
    whole, resumed = (load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "stopped"))
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name
    assert any(not torch.equal(tensor, before[name]) for name, tensor in whole.items())


def test_a_terminal_that_is_gone_leaves_a_checkpoint(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "crossret", "train", str(data), *TINY, "--epochs", "4", "--output"]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execve(sys.executable, [*command, str(tmp_path / "run")], ENVIRONMENT)
    with time_limit(pid):
        log = tmp_path / "run" / "log.jsonl"
        while not (log.exists() and log.stat().st_size):
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 65536)
        os.close(terminal)  # the system sends SIGHUP, and whatever is printed from now on fails
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    before = json.loads(read_header(tmp_path / "run" / "checkpoint.safetensors")[1]["position"])
    assert before["step"] > 0


def test_nohup_goes_on_without_its_terminal(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "crossret", "train", str(data), *TINY, "--epochs", "2", "--output"]
    with started(
        [*command, str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        assert "epoch 2" in process.stderr.read()
    assert process.returncode == 0
