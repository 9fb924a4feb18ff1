"""A new data directory: there when it is whole, never where it would take something's place, in its user's names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from crossret.data.directories import check_new_directory, link_file, list_splits, new_directory
from crossret.files.atomic import atomic_write


def test_splits_are_those_with_features(tmp_path: Path) -> None:
    for name in ("train_ims.npy", "dev_ims.npy", "test_caps.txt", "ims.npy"):
        (tmp_path / name).touch()
    assert list_splits(tmp_path) == ["dev", "train"]
    with pytest.raises(ValueError, match=r"absent: no SPLIT_ims\.npy in it"):
        list_splits(tmp_path / "absent")


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
    with pytest.raises(FileNotFoundError) as missing, new_directory(tmp_path / "new"):
        (tmp_path / "data").read_bytes()
    assert missing.value.filename == str(tmp_path / "data")
    with pytest.raises(OSError, match="not empty") as renamed, new_directory(tmp_path / "new"):
        (tmp_path / "new" / "meanwhile").mkdir(parents=True)
    assert renamed.value.filename == str(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_new_directory_is_not_the_data_nor_inside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to("data")
    for output in (data, data / "deep" / "new", tmp_path / "link" / "new", data / "x" / ".."):
        with pytest.raises(ValueError, match="or inside it; choose a directory elsewhere"):
            check_new_directory(output, data)
    assert check_new_directory(tmp_path / "database", data) == tmp_path / "database"


def test_a_link_is_a_copy_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("contents")
    (tmp_path / "symbolic").symlink_to("file")
    link_file(tmp_path / "symbolic", tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").samefile(tmp_path / "file")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    link_file(tmp_path / "symbolic", tmp_path / "copy")
    assert not (tmp_path / "copy").samefile(tmp_path / "file")
    assert (tmp_path / "copy").read_text() == "contents"


def test_a_pipe_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> NoReturn:
        raise OSError("there are no links")

    monkeypatch.setattr("os.link", no_links)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: not a regular file, but a pipe"):
        link_file(tmp_path / "pipe", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_on_a_full_disk_is_named_and_not_what_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", fail)
    monkeypatch.setattr("shutil.copyfileobj", fail)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(OSError, match=r"No space left on device: '.*/copy'"):
        link_file(tmp_path / "file", tmp_path / "copy")
