"""Safetensors files: what is expected is compared before it is read, and nothing is half written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from crossret.files.tensors import TensorType, read_header, read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)}
TYPES = {name: TensorType.of(tensor) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int16, torch.int32, torch.bfloat16, torch.float16])
def test_written_is_read_again(tmp_path: Path, dtype: torch.dtype) -> None:
    others = {"odd": torch.tensor([0, 1, 1]).to(dtype), "none": torch.zeros(0, 3), "view": TENSORS["a"].T}
    tensors = TENSORS | others
    write_tensors(tmp_path / "file", tensors, {"key": "ü"})
    types, metadata = read_header(tmp_path / "file")
    assert types == {name: TensorType.of(tensor) for name, tensor in tensors.items()}
    assert metadata == {"key": "ü"}
    read = read_tensors(tmp_path / "file", types)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({**TYPES, "c": TYPES["a"]}, "file: tensor 'c' is missing"),
        ({"a": TYPES["a"]}, "file: unexpected tensor 'b'"),
        (
            {**TYPES, "a": TensorType((3, 2), torch.float32)},
            r"file: tensor 'a' is \(2, 3\) torch.float32, expected \(3, 2\)",
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


def test_tensors_are_written_without_a_second_copy_of_them(tmp_path: Path) -> None:
    """A model with its optimizer takes gigabytes: a checkpoint must not take them again, and again for the file."""
    tensors = {name: torch.ones(2**24 // 4) for name in "abcd"}  # 16 MiB each
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident("VmRSS")
    write_tensors(tmp_path / "file", tensors, {})
    assert resident("VmHWM") - before < 12 * 2**10


def resident(name: str) -> int:
    """Of this process, in KiB: what is resident (VmRSS), or the most that was (VmHWM)."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])
