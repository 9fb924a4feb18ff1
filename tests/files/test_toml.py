"""TOML there and back, and what is no TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossret.files.toml import read_toml, write_toml


def test_a_table_comes_back(tmp_path: Path) -> None:
    values = {"text": 'quoted "é"\n', "whole": 3, "number": 1e-05, "flag": True, "list": [1, 2], "none": []}
    write_toml(tmp_path / "a.toml", values, "two\nlines")
    assert (tmp_path / "a.toml").read_text().startswith("# two\n# lines\n")
    assert read_toml(tmp_path / "a.toml") == values


@pytest.mark.parametrize("text", [b"a =", b"\xff", b"a = " + b"[" * 100_000])
def test_what_is_no_toml_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(text)
    with pytest.raises(ValueError, match=r"a.toml: not TOML"):
        read_toml(tmp_path / "a.toml")
