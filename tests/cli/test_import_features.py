"""crossret import-features: a split that the other commands take, and one line for what is malformed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.cli.command import Cli
from tests.compat.features.test_bottom_up import check, fields_of, line, regions, write


def test_folder_becomes_a_split_in_the_order_of_its_ids(crossret: Cli, tmp_path: Path) -> None:
    """SPLIT_ids.txt, as import-captions leaves it, tells which images and in which order."""
    data = tmp_path / "data"
    for folder in (tmp_path / "att", tmp_path / "box", data):
        folder.mkdir()
    for image_id in (7, 30, 9):
        boxes, features = regions(image_id)
        np.savez(tmp_path / "att" / f"COCO_val2014_{image_id:012}.npz", mine=features, other=features)
        np.save(tmp_path / "box" / f"COCO_val2014_{image_id:012}.npy", boxes)
    (data / "dev_ids.txt").write_text("30\n7\n")
    options = ["--output", data, "--split", "dev", "--boxes", tmp_path / "box", "--dataset", "mine"]
    assert crossret("import-features", tmp_path / "att", *options) == 0
    assert crossret.out == f"{data}: features and boxes of 2 images, 3 regions of 5 each\n"
    check(data, "dev", 30, 7)


@pytest.mark.parametrize("name", ["x.npy", "x.h5", "x.safetensors", "x.pt", "x.tsv"])
def test_files_are_known_by_what_they_begin_with(crossret: Cli, tmp_path: Path, name: str) -> None:
    features = torch.ones(2, 3, 5)
    path = tmp_path / name
    if name == "x.h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["features"] = features
    elif name == "x.npy":
        np.save(path, features)
    elif name == "x.tsv":
        write(path, 4, 2)
    else:
        (save_file if name == "x.safetensors" else torch.save)({"features": features}, path)
    if name != "x.tsv":
        path = path.rename(tmp_path / "regions")
    assert crossret("import-features", path, "--output", tmp_path / "data", "--split", "dev") == 0
    assert "of 2 images, 3 regions of 5 each" in crossret.out


def test_mistakes_are_one_line(crossret: Cli, tmp_path: Path) -> None:
    def mistake(*arguments: str | Path) -> str:
        return crossret.refused("import-features", *arguments, "--output", tmp_path / "data", "--split", "dev")

    path = tmp_path / "x.tsv"
    path.write_text(line(**fields_of(1)) + line(**{**fields_of(2), "image_w": "wide"}))
    assert mistake(path) == f"crossret: {path}, line 2: image_w is b'wide', not a whole number above 0\n"
    np.save(tmp_path / "x.npy", np.ones((4, 3, 2)))
    (tmp_path / "x.csv").touch()
    message = "x.csv: not features by what it begins with, nor by its name: .tsv, .npy, .npz, .h5, .safetensors, .pt, "
    assert message in mistake(tmp_path / "x.csv")
    for two in ((path, tmp_path / "x.npy"), (tmp_path / "x.npy", path)):
        assert f"{two[1]}: after {two[0]}, but several may only be .tsv files" in mistake(*two)
    np.savez(tmp_path / "1.npz", np.ones((4, 3, 2)))
    for option, kinds, given in (
        ("--ids", ".tsv, .safetensors, .pt, a folder", tmp_path / "x.npy"),
        ("--boxes", ".npy, a folder", path),
        ("--dataset", ".h5, .safetensors, .pt, a folder", path),
        ("--box-dataset", ".h5, .safetensors, .pt, a folder", tmp_path / "x.npy"),
    ):
        assert f"{option} is for {kinds}, and {given} is none of these" in mistake(given, option, path)
    assert "1.npz: a .npz file is read as one image's: name the folder that it is in" in mistake(tmp_path / "1.npz")
    assert not list((tmp_path / "data").glob("*"))
