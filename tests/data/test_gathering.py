"""Rows of arrays: those that are asked for, by any number of threads, into memory that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import gathering
from crossret.data.batches import Regions, read_regions
from crossret.data.gathering import gathered, pinned, pinning
from crossret.data.precomputed import PrecomputedDataset

ROWS = np.array([4, 0, 4, 2, 1, 4, 3])


@pytest.fixture(params=["<f2", "<f4"])
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    np.save(tmp_path / "array.npy", np.arange(5 * 6 * 3).reshape(5, 6, 3).astype(request.param))
    return np.load(tmp_path / "array.npy", mmap_mode="r")


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("lengths", [None, np.array([6, 1, 0, 3, 6, 2, 5])], ids=["all", "lengths"])
def test_rows_are_those_of_the_array(array: Any, lengths: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_THREADS", threads)
    monkeypatch.setattr(gathering, "LEAST_BYTES", 1)
    monkeypatch.setattr(gathering, "cores", lambda: 16)
    expected = array[ROWS].copy()
    for row, length in zip(expected, () if lengths is None else lengths, strict=False):
        row[length:] = 0
    made = gathered(array, ROWS, lengths)
    assert made.numpy().dtype == array.dtype
    assert np.array_equal(made.numpy(), expected)


def test_no_rows(array: Any) -> None:
    assert gathered(array, ROWS[:0]).shape == (0, 6, 3)


def test_what_goes_to_a_gpu_is_pinned_and_widened_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as much is copied."""
    np.save(tmp_path / "train_ims.npy", np.arange(24, dtype=np.float16).reshape(4, 3, 2))
    (tmp_path / "train_caps.txt").write_text("a word\n" * 4)
    data = PrecomputedDataset(tmp_path, "train")
    asked, empty = [], torch.empty

    def noted(*shape: Any, pin_memory: bool, **others: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*shape, **others)

    monkeypatch.setattr(gathering.torch, "empty", noted)
    images = np.array([3, 1])
    with pinned():
        read = read_regions(data, images)
    assert not pinning()
    wide = read_regions(data, images)
    assert asked == [True, False]
    assert (read.features.dtype, wide.features.dtype) == (torch.float16, torch.float32)
    there = Regions(read.features).on(torch.device("cpu"))["features"]
    assert there.dtype == torch.float32
    assert torch.equal(there, wide.features)
