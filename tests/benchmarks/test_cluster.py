"""The tables of searches on a cluster: rates and arithmetic by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")
from benchmarks import cluster
from crossret.files.features import StoredItems


def test_a_corpus_of_unit_vectors(tmp_path: Path) -> None:
    tokens = cluster.write_corpus(tmp_path / "corpus", 30)
    items = StoredItems.of_directory(tmp_path / "corpus")
    assert (len(items), len(items.values), items.dim) == (30, tokens, cluster.DIM)
    np.testing.assert_allclose(np.linalg.norm(items.values.astype(np.float32), axis=1), 1, atol=1e-2)
