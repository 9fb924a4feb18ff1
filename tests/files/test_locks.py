"""A lock keeps others out while its block runs, and is gone with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossret.files.locks import LOCK, locked
from tests.processes import started

HOLD = """
import sys
from crossret.files.locks import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_named_and_its_death_unlocks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=f"in use by process {other.pid} on ") as caught, locked(tmp_path):
            pass
        assert caught.value.filename == str(tmp_path)
        other.kill()
        other.wait()
        with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_nothing_is_left_of_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert os.listdir(tmp_path) == [LOCK]
    assert os.listdir(tmp_path) == []
