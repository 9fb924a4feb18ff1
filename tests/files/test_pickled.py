"""Checkpoints of torch.save: what comes out of them, and that nothing in them is run."""

from __future__ import annotations

import os
import pickle
import subprocess
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.files.pickled import read_saved

ZIPPED = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(contents: object, path: Path, zipped: bool) -> Path:
    torch.save(contents, path, _use_new_zipfile_serialization=zipped)
    return path


@ZIPPED
def test_tensors_options_and_plain_values_come_out(tmp_path: Path, zipped: bool) -> None:
    contents = {
        "state": OrderedDict(w=torch.arange(6.0).view(2, 3), p=torch.nn.Parameter(torch.ones(2))),
        "opt": Namespace(name="x", list=[1, 2.5, None], flag=True),
        "best": np.float64(3.5),
        "count": np.int64(3),
    }
    found = read_saved(save(contents, tmp_path / "x.pth", zipped))
    assert torch.equal(found["state"]["w"], contents["state"]["w"])
    assert torch.equal(found["state"]["p"], torch.ones(2))
    assert found["opt"] == contents["opt"]
    assert found["best"] is None
    assert found["count"] is None


class Runs:
    """A program that leaves a file where it was run."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call


@ZIPPED
@pytest.mark.parametrize(
    "function", [os.mkdir, eval, exec, subprocess.call, pickle.loads, Path, np.load], ids=lambda one: one.__name__
)
def test_programs_are_refused(tmp_path: Path, function: Any, zipped: bool) -> None:
    place = tmp_path / "was-here"
    argument: object = str(place) if function in (os.mkdir, Path) else f"__import__('os').mkdir({str(place)!r})"
    path = save({"model": [], "opt": Runs(function, argument)}, tmp_path / "x.pth", zipped)
    with pytest.raises(ValueError, match=r"x.pth: refused, as it asks for \S+; nothing of it has been run$"):
        read_saved(path)
    assert not place.exists()


def test_a_scalar_of_objects_is_not_made(tmp_path: Path) -> None:
    """np.dtype("O") and its scalar are what a pickle of NumPy's would run code by."""
    scalar = Runs(np.float64(0).__reduce__()[0], np.dtype("O"), b"x")
    assert read_saved(save({"x": scalar}, tmp_path / "x.pth", True)) == {"x": None}


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    whole = save({"x": torch.zeros(1000)}, tmp_path / "whole.pth", True).read_bytes()
    legacy = save({"x": torch.zeros(1000)}, tmp_path / "legacy.pth", False).read_bytes()
    path = tmp_path / "x.pth"
    for contents in (b"", b"hello", pickle.dumps({"a": 1}), whole[:-100], whole[:50], legacy[:-100], legacy[:200]):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=r"x.pth: not a readable checkpoint of torch.save"):
            read_saved(path)


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    """Which torch.save never writes, and which may be a thousand times as large as the file."""
    path = save({"x": torch.zeros(1000)}, tmp_path / "x.pth", True)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for compression, readable in ((zipfile.ZIP_STORED, True), (zipfile.ZIP_DEFLATED, False)):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, contents in members.items():
                archive.writestr(name, contents)
        if readable:
            assert not read_saved(path)["x"].any()
        else:
            with pytest.raises(ValueError, match=r"x.pth: not a readable checkpoint of torch.save"):
                read_saved(path)


def test_no_setting_of_torch_lets_programs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = save({"opt": Runs(os.mkdir, str(tmp_path / "was-here"))}, tmp_path / "x.pth", True)
    with pytest.raises(ValueError, match=r"refused, as it asks for posix\.mkdir"):
        read_saved(path)
    assert not (tmp_path / "was-here").exists()


def test_a_legacy_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Its strings are bytes, its classes old modules': as torch 0.4 wrote SCAN's published models."""
    path = save({"opt": Namespace(a="b")}, tmp_path / "x.pth", False)
    contents = path.read_bytes()
    for text in ("opt", "a", "b"):
        new = b"X" + len(text).to_bytes(4, "little") + text.encode()
        assert new in contents
        contents = contents.replace(new, b"U" + bytes([len(text)]) + text.encode())
    path.write_bytes(contents)
    assert read_saved(path) == {"opt": Namespace(a="b")}


def test_scalars_of_numpy_1_are_known(tmp_path: Path) -> None:
    path = save({"best": np.float64(3.5), "last": 1}, tmp_path / "x.pth", False)
    contents = path.read_bytes()
    assert b"numpy._core.multiarray\nscalar" in contents
    path.write_bytes(contents.replace(b"numpy._core.multiarray\nscalar", b"numpy.core.multiarray\nscalar"))
    assert read_saved(path) == {"best": None, "last": 1}
