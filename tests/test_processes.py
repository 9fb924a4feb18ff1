"""How tests start processes: SIGINT is answered wherever the tests run, and no process is waited for forever."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.processes import started

ROOT = Path(__file__).parents[1]
DISPOSITIONS = "import signal; print(*map(signal.getsignal, (signal.SIGINT, signal.SIGHUP)))"
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
child.wait()
"""


def ignore_both() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_children_take_signals_that_who_started_the_tests_ignores() -> None:
    """As under `nohup make test &`."""
    code = f"import os, sys, tests.conftest; os.execv(sys.executable, [sys.executable, '-c', {DISPOSITIONS!r}])"
    command = [sys.executable, "-c", code]
    with started(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=ignore_both) as process:
        said, _ = process.communicate()
    assert said.startswith("<built-in function default_int_handler> "), said
    assert said.endswith(f"{signal.Handlers.SIG_DFL}\n"), said


def test_who_takes_too_long_is_killed_with_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SECONDS", 2.0)
    with (
        pytest.raises(pytest.fail.Exception, match=r"^process \d+ had not ended after 2 s and was killed$"),
        started([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True) as process,
    ):
        process.stdout.read()  # ends with the last process that could write there
    assert process.returncode == -signal.SIGKILL
