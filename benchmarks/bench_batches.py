"""Regions of a batch of a training, read from a file that is in memory: by `read_regions`, and by NumPy's indexing.

Memory that is kept stands for the pinned memory that a training for a GPU reads into, which PyTorch keeps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret.data import gathering
from crossret.data.batches import read_regions
from crossret.data.precomputed import PrecomputedDataset

IMAGES, REGIONS, DIM, BATCH = 1500, 36, 2048, 128


@pytest.fixture(params=["float32", "float16"])
def data(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[PrecomputedDataset]:
    n, dim = (IMAGES, DIM) if not benchmark.disabled else (3, 4)
    with tempfile.TemporaryDirectory() as directory:
        features = np.random.default_rng(0).standard_normal((n, REGIONS, dim), np.float32).astype(request.param)
        np.save(Path(directory) / "train_ims.npy", features)
        (Path(directory) / "train_caps.txt").write_text("a caption\n" * n)
        yield PrecomputedDataset(directory, "train")


def indexed(data: PrecomputedDataset, rows: Any, kept: Tensor) -> Tensor:
    """Regions (n, k, d) float32 by NumPy's indexing: into fresh memory, widened, and copied once more."""
    return kept.copy_(torch.from_numpy(np.asarray(data.features[rows])).float())


@pytest.mark.parametrize(("name", "threads"), [("gathered", 1), ("gathered", 4), ("indexed", 1)])
def test_a_batch(
    benchmark: Any, data: PrecomputedDataset, name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_THREADS", threads)
    n = min(BATCH, data.n_images)
    kept = torch.zeros((n, *data.features.shape[1:]), dtype=torch.from_numpy(data.features[:0].copy()).dtype)
    monkeypatch.setattr(gathering, "empty", lambda *_: kept)
    wide, rows = kept.float(), np.random.default_rng(1)
    benchmark.group = f"{n} x {REGIONS} regions of {data.image_dim} in {data.features.dtype}"
    benchmark.extra_info.update(implementation=name, threads=threads)

    def read() -> Any:
        images = rows.integers(0, data.n_images, n)
        if name == "indexed":
            return indexed(data, images, wide)
        with gathering.pinned():
            return read_regions(data, images).features

    benchmark.pedantic(read, rounds=30, warmup_rounds=3)
