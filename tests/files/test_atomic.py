"""atomic_write: the old contents or the new, whatever interrupts it."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from crossret.files.atomic import atomic_write
from tests.processes import started_program

KILLED_INSIDE_THE_BLOCK = """
import sys
from crossret.files.atomic import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_alone(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_kill_leaves_the_old_file_alone_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with started_program(KILLED_INSIDE_THE_BLOCK, path) as writer:
        with atomic_write(tmp_path / "other"):
            pass
        assert len(os.listdir(tmp_path)) == 3  # a living writer's file is spared
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old"
    anothers = tmp_path / ".crossret-of-another.tmp"
    anothers.touch()
    with atomic_write(tmp_path / "other"):
        pass
    assert sorted(os.listdir(tmp_path)) == [anothers.name, "file", "other"]


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    for contents in (b"created", b"replaced"):
        with atomic_write(link) as file:
            file.write(contents)
        assert link.is_symlink()
        assert target.read_bytes() == contents
    assert os.listdir(tmp_path / "elsewhere") == ["target"]


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    before = sorted(os.listdir(tmp_path))
    for name in before:
        with pytest.raises(FileExistsError, match=f"not a regular file: '.*{name}'"), atomic_write(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_errors_name_the_file_and_not_the_hidden_one(tmp_path: Path) -> None:
    for path in (tmp_path / "absent" / "file", tmp_path / ("n" * 256)):
        with pytest.raises(OSError, match=r"directory|too long") as caught, atomic_write(path):
            pass
        assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="No space") as caught, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="an input"), atomic_write(tmp_path / "file"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "an input")


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    plain, atomic = tmp_path / "plain", tmp_path / "atomic"
    plain.write_bytes(b"")
    with atomic_write(atomic):
        pass
    assert atomic.stat().st_mode == plain.stat().st_mode
