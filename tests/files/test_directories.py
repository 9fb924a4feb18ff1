"""A new directory: there when it is whole, never where it would take something's place, in its user's names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crossret.files.atomic import atomic_write
from crossret.files.directories import check_new_directory, new_directory, occupied
from tests.processes import started_program


def test_a_directory_is_there_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for target in (tmp_path / "deep" / "new", tmp_path / "there"):
        with new_directory(target) as directory:
            (directory / "file").touch()
            assert directory.parent == target.parent
            assert not (target / "file").exists()
        assert [path.name for path in target.iterdir()] == ["file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "there"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError("without a name")])
def test_nothing_is_left_of_one_that_is_not_finished(tmp_path: Path, error: type[BaseException] | Exception) -> None:
    with pytest.raises(BaseException) as caught, new_directory(tmp_path / "new") as directory:
        (directory / "file").touch()
        raise error
    assert caught.value is error or caught.type is error
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_directory_that_the_user_knows(tmp_path: Path) -> None:
    place = Path("absent", "file")
    with (
        pytest.raises(FileNotFoundError) as caught,
        new_directory(tmp_path / "new") as directory,
        atomic_write(directory / place) as file,
    ):
        file.write(b"")
    assert caught.value.filename == str(tmp_path / "new" / place)
    with pytest.raises(OSError, match="not empty") as renamed, new_directory(tmp_path / "new"):
        (tmp_path / "new" / "meanwhile").mkdir(parents=True)
    assert renamed.value.filename == str(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("name", ["file/new", "file/deep/new", "n" * 256])
def test_what_cannot_be_made_is_named_as_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(OSError, match=r"Not a directory|too long") as caught, new_directory(name):
        pytest.fail("begun")
    assert caught.value.filename == name
    assert os.listdir() == ["file"]


def test_directories_made_for_nothing_are_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("new", "deep/new", "there"):
        with pytest.raises(ValueError, match="x"), occupied(tmp_path / name):
            raise ValueError("x")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_of_two_that_make_a_directory_the_second_is_told_at_once(tmp_path: Path) -> None:
    note = f"in use by process {os.getpid()} on "
    with new_directory(tmp_path / "new"):
        for look in (new_directory(tmp_path / "new").__enter__, lambda: check_new_directory(tmp_path / "new")):
            with pytest.raises(BlockingIOError, match=note) as caught:
                look()
            assert caught.value.filename == str(tmp_path / "new")
        with new_directory(tmp_path / "other"):
            pass
    assert sorted(os.listdir(tmp_path)) == ["new", "other"]
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(BlockingIOError, match=note), occupied(tmp_path / "new"), occupied(tmp_path / "new"):
        pass


def test_a_directory_with_the_lock_of_a_killed_process_is_empty(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".crossret-lock").write_text("process 1 on another")
    with new_directory(tmp_path / "new") as directory:
        (directory / "file").touch()
    assert os.listdir(tmp_path / "new") == ["file"]
    with occupied(tmp_path / "busy"), pytest.raises(BlockingIOError, match="in use by process"):
        check_new_directory(tmp_path / "busy")


MAKES = """
import sys
from crossret.files.directories import new_directory
with new_directory(sys.argv[1]) as directory:
    (directory / "deep").mkdir()
    (directory / "deep" / "file").touch()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_killed_processes_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with (
        started_program(MAKES, tmp_path / "killed") as killed,
        started_program(MAKES, tmp_path / "living") as living,
    ):
        assert len(os.listdir(tmp_path)) == 4  # hidden: a directory and a lock of each
        killed.kill()
        killed.wait()
        with new_directory(tmp_path / "next"):
            assert len(os.listdir(tmp_path)) == 4  # the living one's, and this one's
        with pytest.raises(BlockingIOError, match=f"in use by process {living.pid} on "):
            check_new_directory(tmp_path / "living")
        with new_directory(tmp_path / "killed"):
            pass
        living.communicate()
    assert sorted(os.listdir(tmp_path)) == ["killed", "living", "next"]
    assert os.listdir(tmp_path / "living") == ["deep"]


def test_a_new_directory_is_not_the_data_nor_inside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to("data")
    for output in (data, data / "deep" / "new", tmp_path / "link" / "new", data / "x" / ".."):
        with pytest.raises(ValueError, match="or inside it; choose a directory elsewhere"):
            check_new_directory(output, data)
    assert check_new_directory(tmp_path / "database", data) == tmp_path / "database"
