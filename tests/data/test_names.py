"""Names of splits: one error for what is none, wherever a split is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crossret.compat.features import ArrayFile, import_features
from crossret.data import PrecomputedDataset
from crossret.data.scenes.layout import grounding_path


def imported(directory: Path, split: str) -> object:
    np.save(directory / "x.npy", np.ones((1, 2, 3), np.float32))
    return import_features(ArrayFile(directory / "x.npy"), directory / "data", split)


@pytest.mark.parametrize("name", ["", "../train", "/etc/passwd", "a\0b", "\x1b[31m", "ü" * 51])
@pytest.mark.parametrize("use", [PrecomputedDataset, imported, grounding_path])
def test_what_is_no_name_is_refused(tmp_path: Path, use: Callable[[Path, str], object], name: str) -> None:
    with pytest.raises(ValueError, match=r"^split must be a name, 1 to 100 bytes of printable characters without '/'"):
        use(tmp_path, name)
    assert not (tmp_path / "data").exists()
