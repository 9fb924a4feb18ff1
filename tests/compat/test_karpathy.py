"""Karpathy's dataset_*.json: captions and ids of its splits, in the order of features, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossret.compat import karpathy
from crossret.compat.features import import_features
from crossret.compat.features.bottom_up import BottomUpFiles
from crossret.compat.karpathy import import_captions
from crossret.data import PrecomputedDataset
from tests.cli.command import Cli
from tests.compat.features.test_bottom_up import write


@pytest.fixture
def crossret(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def image(number: int, split: str = "train", captions: int = 5, **others: Any) -> dict[str, Any]:
    sentences = [
        {"raw": f" Image {number},\n caption {caption}. ", "sentid": 10 * number + caption}
        for caption in range(captions)
    ]
    return {"filename": f"COCO_{number}.jpg", "cocoid": number, "split": split, "sentences": sentences, **others}


def dataset(path: Path, *images: Any) -> Path:
    path.write_text(json.dumps({"dataset": "coco", "images": images}))
    return path


def captions_of(*numbers: int) -> list[str]:
    return [f"Image {number}, caption {caption}." for number in numbers for caption in range(5)]


def test_splits_become_those_of_a_data_directory(tmp_path: Path) -> None:
    path = dataset(
        tmp_path / "dataset_coco.json",
        image(7), image(9, "val", 6), image(8, "restval", 7), image(3, "test"), image(4, "unused", 1), image(5, "val"),
    )  # fmt: skip
    found = import_captions(path, tmp_path / "data")
    assert {name: (list(part.captions), part.cut) for name, part in found.items()} == {
        "train": (["7", "8"], 1), "dev": (["9", "5"], 1), "test": (["3"], 0),
    }  # fmt: skip
    assert (tmp_path / "data/dev_ids.txt").read_text() == "9\n5\n"
    assert (tmp_path / "data/train_caps.txt").read_text().splitlines() == captions_of(7, 8)


@pytest.mark.parametrize("features_first", [False, True])
def test_captions_lie_beside_their_features(features_first: bool, tmp_path: Path, crossret: Cli) -> None:
    path = dataset(tmp_path / "x.json", image(7), image(9), image(8))
    regions = write(tmp_path / "x.tsv", 9, 8, 7)
    commands = [
        ["import-captions", path, "--output", tmp_path / "data", "--splits", "train=train"],
        ["import-features", regions, "--output", tmp_path / "data", "--split", "train"],
    ]
    for command in reversed(commands) if features_first else commands:
        assert crossret(*command) == 0
    order = (9, 8, 7) if features_first else (7, 9, 8)
    assert (tmp_path / "data/train_ids.txt").read_text().split() == [str(number) for number in order]
    data = PrecomputedDataset(tmp_path / "data", "train")
    assert data.captions == captions_of(*order)
    assert data.caption_ids == [str(10 * number + caption) for number in order for caption in range(5)]
    import_features(BottomUpFiles([regions]), tmp_path / "alone", "train")
    rows = dict(zip((9, 8, 7), np.load(tmp_path / "alone/train_ims.npy"), strict=True))
    assert all(np.array_equal(found, rows[number]) for found, number in zip(data.features, order, strict=True))


def test_images_that_are_named_once_a_caption_are_one_each(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("9\n" * 5 + "7\n" * 5)
    source = BottomUpFiles([write(tmp_path / "x.tsv", 7, 8, 9)], tmp_path / "ids.txt")
    import_features(source, tmp_path / "data", "dev")
    import_captions(dataset(tmp_path / "x.json", image(7, "val"), image(9, "val")), tmp_path / "data")
    data = PrecomputedDataset(tmp_path / "data", "dev")
    assert (data.n_images, data.ids) == (2, ["9", "7"])
    assert data.captions == captions_of(9, 7)


def test_features_in_another_order_are_refused(tmp_path: Path) -> None:
    import_captions(dataset(tmp_path / "x.json", image(7), image(9)), tmp_path / "data")
    with pytest.raises(ValueError, match=r"x.tsv, line 1: image 9 is not what .*train_ids.txt, line 1 names"):
        import_features(BottomUpFiles([write(tmp_path / "x.tsv", 9, 7)]), tmp_path / "data", "train")
    with pytest.raises(ValueError, match=r"y.tsv: 1 images, but .*train_ids.txt names 2"):
        import_features(BottomUpFiles([write(tmp_path / "y.tsv", 7)]), tmp_path / "data", "train")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "train_caps.txt", "train_ids.txt", "train_caption_ids.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([image(1), image(1)], r"images\[1\]: another image has the id 1, too"),
        ([image(1, captions=4)], r"images\[0\], 1: has 4 captions, fewer than 5"),
        ([image(1, sentences=[{"raw": "\u200b"}] * 5)], r"1: sentences\[0\]: the caption is empty"),
        ([image(1, cocoid=None, filename="a b.jpg")], "'a b' is no id, which has no white space"),
        ([image(1, "nowhere")], "no images of train, restval, val, test"),
    ],
)
def test_malformed_images_are_named(images: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        import_captions(dataset(tmp_path / "x.json", *images), tmp_path / "data")
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_mistakes_are_one_line(tmp_path: Path, crossret: Cli) -> None:
    path = dataset(tmp_path / "x.json", image(7))
    assert crossret("import-captions", path, "--output", tmp_path, "--splits", "train") == 2
    assert crossret.err == "crossret: --splits must be like train=train,val=dev, not 'train'\n"
    assert crossret("import-captions", path, "--output", tmp_path) == 0
    assert crossret.out == f"{tmp_path}: train, 1 images with five captions each\n"
    assert crossret("import-captions", path, "--output", tmp_path) == 2
    assert "train_caps.txt: is there already" in crossret.err
    for name in ("train_caps.txt", "train_caption_ids.txt"):
        (tmp_path / name).unlink()
    (tmp_path / "train_ids.txt").write_text("7\n8\n")
    assert crossret("import-captions", path, "--output", tmp_path) == 2
    assert f"train_ids.txt: image 8 has no captions in {path}" in crossret.err


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataset(tmp_path / "x.json", image(7), image(8, "val"))
    write_one, calls = karpathy.atomic_write, []

    def failing(target: Path) -> Any:
        calls.append(target)
        if len(calls) == 3:
            raise OSError("the disk is full")
        return write_one(target)

    monkeypatch.setattr(karpathy, "atomic_write", failing)
    with pytest.raises(OSError, match="the disk is full"):
        import_captions(path, tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.txt"))
