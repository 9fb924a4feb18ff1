"""Names of splits: one error for what is none, wherever a split is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crossret.compat.features import ArrayFile, import_features
from crossret.data import PrecomputedDataset
from crossret.data.names import check_name
from crossret.data.perturbing import perturb_data
from crossret.data.scenes.layout import grounding_path, picture_path


def imported(directory: Path, split: str) -> object:
    np.save(directory / "x.npy", np.ones((1, 2, 3), np.float32))
    return import_features(ArrayFile(directory / "x.npy"), directory / "data", split)


@pytest.mark.parametrize(
    "name", ["", "..", "../train", "a/b", "/etc/passwd", "a\nb", "a\0b", "\x1b[31m", "x" * 101, "ü" * 51, "\ud800"]
)
@pytest.mark.parametrize(
    "use",
    [
        PrecomputedDataset,
        imported,
        lambda directory, split: perturb_data(directory, directory.with_name("out"), split=split),
        grounding_path,
        lambda directory, split: picture_path(directory, split, 0),
    ],
    ids=["read", "import", "perturb", "grounding", "picture"],
)
def test_what_is_no_name_is_refused(tmp_path: Path, use: Callable[[Path, str], object], name: str) -> None:
    with pytest.raises(ValueError, match=r"^split must be a name, 1 to 100 bytes of printable characters without '/'"):
        use(tmp_path, name)
    assert not (tmp_path / "data").exists()


def test_names_that_are(tmp_path: Path) -> None:
    for name in ("train", "val2014", "my split", "ü" * 50, "-x", "a.b"):
        check_name("split", name)
    with pytest.raises(ValueError, match=r"not 'x{40}…'$"):
        check_name("split", "x" * 10**6)
    with pytest.raises(TypeError, match=r"^dataset must be a name, not 5$"):
        check_name("dataset", 5)
