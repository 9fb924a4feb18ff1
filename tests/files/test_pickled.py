"""Checkpoints of torch.save: what comes out of them, and that nothing in them is run."""

from __future__ import annotations

import os
import pickle
import subprocess
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.files.pickled import read_checkpoint

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
    found = read_checkpoint(save(contents, tmp_path / "x.pth", zipped))
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
@pytest.mark.parametrize("function", [os.mkdir, eval, exec, subprocess.call, pickle.loads, Path, np.load], ids=str)
def test_programs_are_refused(tmp_path: Path, function: Any, zipped: bool) -> None:
    place = tmp_path / "was-here"
    argument: object = str(place) if function in (os.mkdir, Path) else f"__import__('os').mkdir({str(place)!r})"
    path = save({"model": [], "opt": Runs(function, argument)}, tmp_path / "x.pth", zipped)
    with pytest.raises(ValueError, match=r"x.pth: refused, as it asks for \S+; nothing of it has been run$"):
        read_checkpoint(path)
    assert not place.exists()


@ZIPPED
def test_classes_and_arrays_of_objects_are_refused(tmp_path: Path, zipped: bool) -> None:
    for value in (Runs, np.array([Namespace()], dtype=object), torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match="refused, as it asks for"):
            read_checkpoint(save({"x": value}, tmp_path / "x.pth", zipped))


def test_a_scalar_of_objects_is_not_made(tmp_path: Path) -> None:
    """np.dtype("O") and its scalar are what a pickle of NumPy's would run code by."""
    scalar = Runs(np.float64(0).__reduce__()[0], np.dtype("O"), b"x")
    assert read_checkpoint(save({"x": scalar}, tmp_path / "x.pth", True)) == {"x": None}


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    whole = save({"x": torch.zeros(1000)}, tmp_path / "whole.pth", True).read_bytes()
    legacy = save({"x": torch.zeros(1000)}, tmp_path / "legacy.pth", False).read_bytes()
    path = tmp_path / "x.pth"
    for contents in (b"", b"hello", pickle.dumps({"a": 1}), whole[:-100], whole[:50], legacy[:-100], legacy[:200]):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=r"x.pth: not a readable checkpoint of torch.save"):
            read_checkpoint(path)
    for value in ([1], torch.zeros(1), {1: 2}):
        with pytest.raises(ValueError, match=r"x.pth: not a checkpoint: no dictionary by strings"):
            read_checkpoint(save(value, path, True))
    with pytest.raises(FileNotFoundError, match=r"none.pth: no such file"):
        read_checkpoint(tmp_path / "none.pth")
    with pytest.raises(ValueError, match="not a regular file, but a directory"):
        read_checkpoint(tmp_path)


def test_a_legacy_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Its strings are bytes, its classes old modules': as torch 0.4 wrote SCAN's published models."""
    path = save({"opt": Namespace(a="b")}, tmp_path / "x.pth", False)
    contents = path.read_bytes()
    for text in ("opt", "a", "b"):
        new = b"X" + len(text).to_bytes(4, "little") + text.encode()
        assert new in contents
        contents = contents.replace(new, b"U" + bytes([len(text)]) + text.encode())
    path.write_bytes(contents)
    assert read_checkpoint(path) == {"opt": Namespace(a="b")}
