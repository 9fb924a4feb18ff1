"""A lock keeps others out while its block runs, and is gone with its process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from crossret.files.locks import LOCK, locked
from tests.processes import started

HOLD = textwrap.dedent(
    """
    import sys
    from crossret.files.locks import locked
    with locked(sys.argv[1]):
        print("locked", flush=True)
        sys.stdin.read()
    """
)


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


def test_what_a_lock_says_is_not_believed_at_length(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(b"\xff" * 10_000)
        with pytest.raises(BlockingIOError) as caught, locked(tmp_path):
            pass
    assert len(str(caught.value)) < 1000


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nothing"):
        pass


def test_nothing_is_left_of_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert os.listdir(tmp_path) == [LOCK]
    assert os.listdir(tmp_path) == []
    with locked(tmp_path):  # of a directory that gets another name
        tmp_path.rename(tmp_path.with_name("renamed"))
    assert os.listdir(tmp_path.with_name("renamed")) == []


def test_a_lock_that_is_removed_as_it_is_waited_for_is_made_again(tmp_path: Path) -> None:
    holder = locked(tmp_path)
    holder.__enter__()
    got: list[list[str]] = []

    def work() -> None:
        with locked(tmp_path, wait=True):
            got.append(os.listdir(tmp_path))

    waiting = threading.Thread(target=work)
    waiting.start()
    holder.__exit__(None, None, None)
    waiting.join(60)
    assert got == [[LOCK]]
    assert os.listdir(tmp_path) == []


def test_a_lock_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    directory.mkdir()
    elsewhere.write_text("mine")
    (directory / LOCK).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=f"{LOCK}: not a regular file, so that the directory cannot be locke"):
        locked(directory).__enter__()
    assert elsewhere.read_text() == "mine"


def test_errors_name_the_directory_and_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, flags: int, *_: object, **__: object) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EACCES, "Permission denied", path)
        return real(path, flags)  # type: ignore[arg-type]

    real = os.open
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError) as caught, locked(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path)
