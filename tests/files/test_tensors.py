"""Safetensors files: what is expected is compared before it is read, and nothing is half written."""

from __future__ import annotations

import json
import os
import re
import struct
from functools import partial
from pathlib import Path

import pytest
import torch

from crossret.files.tensors import TensorType, read_header, read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)}
TYPES = {name: TensorType.of(tensor) for name, tensor in TENSORS.items()}


def test_written_is_read_again(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"view": torch.arange(6.0).reshape(2, 3).T, **TENSORS}, {"key": "ü"})
    types, metadata = read_header(tmp_path / "file")
    assert types == {"view": TensorType((3, 2), torch.float32), **TYPES}
    assert metadata == {"key": "ü"}
    tensors = read_tensors(tmp_path / "file", types)
    assert torch.equal(tensors["view"], torch.arange(6.0).reshape(2, 3).T)
    assert torch.equal(tensors["b"], TENSORS["b"])


def test_tensors_outlive_their_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    tensors = read_tensors(tmp_path / "file", TYPES)
    (tmp_path / "file").write_bytes(b"\xff" * (tmp_path / "file").stat().st_size)
    assert torch.equal(tensors["a"], TENSORS["a"])


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({**TYPES, "c": TYPES["a"]}, "file: tensor 'c' is missing"),
        ({"a": TYPES["a"]}, "file: unexpected tensor 'b'"),
        (
            {**TYPES, "a": TensorType((3, 2), torch.float32)},
            r"file: tensor 'a' is \(2, 3\) torch.float32, expected \(3, 2\)",
        ),
        (
            {**TYPES, "b": TensorType((), torch.float32)},
            r"file: tensor 'b' is \(\) torch.int64, expected \(\) torch.float32",
        ),
    ],
)
def test_what_differs_from_the_expected_is_named(tmp_path: Path, expected: dict[str, TensorType], message: str) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    with pytest.raises(ValueError, match=message):
        read_tensors(tmp_path / "file", expected)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {"key": "value"})
    contents = (tmp_path / "file").read_bytes()
    for length in range(len(contents)):
        (tmp_path / "file").write_bytes(contents[:length])
        with pytest.raises(ValueError, match="file: not a readable safetensors file"):
            read_tensors(tmp_path / "file", TYPES)


def test_a_header_that_promises_more_than_the_file_holds_is_an_error(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**30, 2**30], "data_offsets": [0, 2**62]}}).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(ValueError, match="file: not a readable safetensors file"):
        read_header(tmp_path / "file")


def test_a_dtype_that_nothing_writes_is_an_error(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"flags": torch.tensor([True])}, {})
    with pytest.raises(ValueError, match="file: tensor 'flags' has dtype BOOL"):
        read_header(tmp_path / "file")


@pytest.mark.parametrize("name", [os.fsdecode(b"run\xff"), "run\ud800"])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, name: str) -> None:
    shown = name.encode("ascii", "backslashreplace").decode().replace("udcff", "xff")
    expected = re.escape(f"{shown}: its name is not UTF-8")
    with pytest.raises(ValueError, match=expected):
        write_tensors(tmp_path / name, TENSORS, {})
    assert not any(tmp_path.iterdir())
    for read in (read_header, partial(read_tensors, expected=TYPES)):
        with pytest.raises(ValueError, match=expected):
            read(tmp_path / name)
