"""crossret import-features: a split that the other commands take, and one line for what is malformed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crossret.data import PrecomputedDataset
from tests.cli.command import Cli
from tests.compat.features.test_bottom_up import check, fields_of, line, write


def test_tsv_becomes_a_split(crossret: Cli, tmp_path: Path) -> None:
    paths = [write(tmp_path / "x.tsv.0", 4, 2), write(tmp_path / "x.tsv.1", 9)]
    (tmp_path / "ids.txt").write_text("9\n4\n")
    data = tmp_path / "data"
    assert crossret("import-features", *paths, "--output", data, "--split", "dev", "--ids", tmp_path / "ids.txt") == 0
    assert crossret.out == f"{data}: features and boxes of 2 images, 3 regions of 5 each\n"
    check(data, "dev", 9, 4)
    (data / "dev_caps.txt").write_text("a dog\n" * 10)
    assert PrecomputedDataset(data, "dev").boxes is not None


def test_mistakes_are_one_line(crossret: Cli, tmp_path: Path) -> None:
    def mistake(*arguments: str | Path) -> str:
        assert crossret("import-features", *arguments, "--output", tmp_path / "data", "--split", "dev") == 2
        assert crossret.err.count("\n") == 1
        return crossret.err

    path = tmp_path / "x.tsv"
    path.write_text(line(**fields_of(1)) + line(**{**fields_of(2), "image_w": "wide"}))
    assert mistake(path) == f"crossret: {path}, line 2: image_w is b'wide', not a whole number above 0\n"
    np.save(tmp_path / "x.npy", np.ones((4, 3, 2)))
    (tmp_path / "x.csv").touch()
    assert "x.csv: its name must end in .tsv, .npy, .h5 or .hdf5" in mistake(tmp_path / "x.csv")
    assert "x.npy: not a .tsv file as the one before it" in mistake(path, tmp_path / "x.npy")
    assert "x.tsv: of .npy files one at a time is read" in mistake(tmp_path / "x.npy", path)
    assert f"--ids is for .tsv files, and {tmp_path}/x.npy is none" in mistake(tmp_path / "x.npy", "--ids", path)
    assert f"--boxes is for .npy files, and {path} is none" in mistake(path, "--boxes", tmp_path / "x.npy")
    assert f"--box-dataset is for .h5 files, and {path} is none" in mistake(path, "--box-dataset", "boxes")
    assert not list((tmp_path / "data").glob("*"))
