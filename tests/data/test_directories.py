"""Splits of a data directory, and links to its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crossret.data.directories import link_file, list_splits


def test_splits_are_those_with_features(tmp_path: Path) -> None:
    for name in ("train_ims.npy", "dev_ims.npy", "test_caps.txt", "ims.npy"):
        (tmp_path / name).touch()
    assert list_splits(tmp_path) == ["dev", "train"]
    with pytest.raises(ValueError, match=r"absent: no SPLIT_ims\.npy in it"):
        list_splits(tmp_path / "absent")


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
