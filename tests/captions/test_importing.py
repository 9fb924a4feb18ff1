"""Captions as splits: by the file's own, all in one, or those listed; in the order of features; all files or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossret.captions import importing
from crossret.captions.importing import import_captions
from crossret.compat.features import import_features
from crossret.compat.features.bottom_up import BottomUpFiles
from crossret.data import PrecomputedDataset
from tests.cli.command import Cli
from tests.compat.features.test_bottom_up import write


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


def annotations(path: Path, captions: dict[int, int]) -> Path:
    """MS-COCO's annotations of images with so many captions, those of images among each other's."""
    images = [{"id": number, "file_name": f"COCO_val2014_{number:012}.jpg"} for number in captions]
    told = [
        {"image_id": number, "id": 10 * number + caption, "caption": f"Image {number}, caption {caption}.\n"}
        for caption in range(max(captions.values()))
        for number in captions
        if caption < captions[number]
    ]
    path.write_text(json.dumps({"info": {}, "images": images, "annotations": told}))
    return path


def test_splits_become_those_of_a_data_directory(tmp_path: Path) -> None:
    path = dataset(
        tmp_path / "dataset_coco.json",
        image(7), image(9, "val", 6), image(8, "restval", 7), image(3, "test"), image(4, "unused", 1), image(5, "val"),
    )  # fmt: skip
    counts, notes = import_captions(path, tmp_path / "data")
    assert counts == {"train": [5, 7], "dev": [6, 5], "test": [5]}
    assert notes == ["left out: 1 images of split unused"]
    assert (tmp_path / "data/dev_ids.txt").read_text() == "9\n5\n"
    assert np.load(tmp_path / "data/dev_image_of_caption.npy").tolist() == [0] * 6 + [1] * 5
    import_captions(path, tmp_path / "published", per_image=5)
    assert (tmp_path / "published/train_caps.txt").read_text().splitlines() == captions_of(7, 8)
    assert not list((tmp_path / "published").glob("*.npy"))


def test_any_number_of_captions_from_annotations_to_a_data_set(tmp_path: Path, crossret: Cli) -> None:
    path = annotations(tmp_path / "captions_val2014.json", {7: 5, 9: 7, 8: 6})
    regions, data = write(tmp_path / "x.tsv", 9, 8, 7), tmp_path / "data"
    assert crossret("import-captions", path, "--output", data, "--split", "test") == 0
    assert crossret.out == f"{data}: test, 3 images with 5 to 7 captions each\n"
    assert crossret("import-features", regions, "--output", data, "--split", "test") == 0
    found = PrecomputedDataset(data, "test")
    assert found.ids == ["7", "9", "8"]
    assert found.image_of_caption.tolist() == [0] * 5 + [1] * 7 + [2] * 6
    assert found.captions[5:12] == [f"Image 9, caption {caption}." for caption in range(7)]
    assert found.caption_ids is not None and found.caption_ids[11:13] == ["96", "80"]


@pytest.mark.parametrize("features_first", [False, True])
def test_captions_lie_beside_their_features(features_first: bool, tmp_path: Path, crossret: Cli) -> None:
    path = dataset(tmp_path / "x.json", image(7), image(9), image(8))
    regions = write(tmp_path / "x.tsv", 9, 8, 7)
    commands = [
        ["import-captions", path, "--output", tmp_path / "data", "--splits", "train=train", "--protocol", "published"],
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


@pytest.mark.parametrize("captions", [2, 5])
def test_images_that_are_named_once_a_caption_are_one_each(captions: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dev_ids.txt").write_text("9\n" * captions + "7\n" * captions)
    path = dataset(tmp_path / "x.json", image(7, "val"), image(9, "val"))
    import_captions(path, tmp_path / "data", per_image=captions)
    lines = [f"Image {number}, caption {caption}." for number in (9, 7) for caption in range(captions)]
    assert (tmp_path / "data/dev_caps.txt").read_text().splitlines() == lines
    (tmp_path / "data/test_ids.txt").write_text("9\n" * captions + "7\n")
    with pytest.raises(ValueError, match=r"test_ids.txt: its [36] lines must name each image once, or once a caption"):
        import_captions(path, tmp_path / "data", split="test", per_image=captions)


def test_rows_that_repeat_once_a_caption(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("9\n" * 5 + "7\n" * 5)
    source = BottomUpFiles([write(tmp_path / "x.tsv", 7, 8, 9)], tmp_path / "ids.txt")
    import_features(source, tmp_path / "data", "dev")
    import_captions(dataset(tmp_path / "x.json", image(7, "val"), image(9, "val")), tmp_path / "data")
    data = PrecomputedDataset(tmp_path / "data", "dev")
    assert (data.n_images, data.ids) == (2, ["9", "7"])
    assert data.captions == captions_of(9, 7)


@pytest.mark.parametrize(
    "names",
    [["8", "7"], ["COCO_8.jpg", "COCO_7"], ["8", "8", "8", "7", "7"], ["0", "1"]],
    ids=["ids", "files", "repeated", "numbers"],
)
def test_listed_images_in_the_order_of_the_list(names: list[str], tmp_path: Path, crossret: Cli) -> None:
    path = dataset(tmp_path / "x.json", image(7), image(9), image(8, "val", 6))
    listed, data = tmp_path / "list/precomp/test_ids.txt", tmp_path / "data"
    listed.parent.mkdir(parents=True)
    listed.write_text("".join(f"{name}\n" for name in names))
    if "0" in names:
        (tmp_path / "list/id_mapping.json").write_text(json.dumps({"0": "COCO_8.jpg", "1": "COCO_7.jpg"}))
    assert crossret("import-captions", path, "--output", data, "--split", "part", "--images", listed) == 0
    assert f"{data}: part, 2 images with 5 to 6 captions each\n" in crossret.out
    assert f"left out: 1 images that {listed} does not name\n" in crossret.out
    assert (data / "part_ids.txt").read_text() == "8\n7\n"
    assert (data / "part_caps.txt").read_text().splitlines() == ["Image 8, caption 0.", *captions_of(8, 7)[1:5],
                                                                 "Image 8, caption 5.", *captions_of(7)]  # fmt: skip


def test_images_of_lists_are_found_by_paths_and_by_their_own_ids(tmp_path: Path) -> None:
    files = ["val2014/COCO_val2014_000000391895.jpg", "a/x.jpg", "b/x.jpg", "VG/12.jpg"]
    entries = [{"image": file, "caption": file, "image_id": f"own_{file[0]}"} for file in files]
    (tmp_path / "x.json").write_text(json.dumps(entries))
    (tmp_path / "ids.txt").write_text("own_b\n12\na/x\nval2014/COCO_val2014_000000391895\n")
    import_captions(tmp_path / "x.json", tmp_path, split="test", listed=tmp_path / "ids.txt")
    assert (tmp_path / "test_ids.txt").read_text().split() == ["b/x", "VG/12", "a/x", "391895"]
    assert not (tmp_path / "test_caption_ids.txt").exists()
    for name, message in (
        ("x.jpg", r"ids.txt: image x.jpg is one of 2 in .*x.json"),
        ("y", r"ids.txt: image y has no captions in .*x.json"),
        ("12\na/x\n12", r"ids.txt: image 12 is named twice"),
        ("", r"ids.txt: names no images"),
    ):
        (tmp_path / "ids.txt").write_text(name)
        with pytest.raises(ValueError, match=message):
            import_captions(tmp_path / "x.json", tmp_path, split="dev", listed=tmp_path / "ids.txt")


def test_images_may_be_named_repeatedly(tmp_path: Path) -> None:
    path = dataset(tmp_path / "x.json", image(7, captions=2), image(8, captions=2), image(9, captions=2))
    (tmp_path / "train_ids.txt").write_text("7\n8\n7\n")  # as features are, which may come repeatedly
    assert import_captions(path, tmp_path) == (
        {"train": [2, 2, 2]},
        [f"left out: 1 images that {tmp_path / 'train_ids.txt'} does not name"],
    )
    assert (tmp_path / "train_caps.txt").read_text().splitlines() == [*captions_of(7)[:2], *captions_of(8)[:2],
                                                                      *captions_of(7)[:2]]  # fmt: skip


def test_lists_name_images_by_karpathy_s_numbers(tmp_path: Path) -> None:
    flickr = [{**image(7), "imgid": 67}, {**image(8), "imgid": 68}]
    for number, of in enumerate(flickr):
        of.pop("cocoid", None)
        of["filename"] = f"100{number}.jpg"
    (tmp_path / "ids.txt").write_text("68\n67\n")
    import_captions(dataset(tmp_path / "x.json", *flickr), tmp_path, split="test", listed=tmp_path / "ids.txt")
    assert (tmp_path / "test_ids.txt").read_text() == "1001\n1000\n"


@pytest.mark.parametrize("features_first", [False, True])
def test_images_in_folders_lie_beside_features_of_a_folder(features_first: bool, tmp_path: Path, crossret: Cli) -> None:
    """As BLIP's list of Flickr30K names pictures: flickr30k-images/12.jpg."""
    entries = [{"image": f"flickr/{number}.jpg", "caption": [f"{number}"] * (number + 1)} for number in (2, 1)]
    (tmp_path / "x.json").write_text(json.dumps(entries))
    (tmp_path / "regions").mkdir()
    for number in (1, 2):
        np.save(tmp_path / f"regions/{number}.npy", np.full((3, 4), number, np.float32))
    commands = [
        ["import-captions", tmp_path / "x.json", "--output", tmp_path / "data", "--split", "test"],
        ["import-features", tmp_path / "regions", "--output", tmp_path / "data", "--split", "test"],
    ]
    for command in reversed(commands) if features_first else commands:
        assert crossret(*command) == 0, crossret.err
    data = PrecomputedDataset(tmp_path / "data", "test")
    described = [data.features[row, 0, 0] for row in data.feature_rows[data.image_of_caption]]
    assert described == [float(caption) for caption in data.captions] and len(data.captions) == 5


def test_features_in_another_order_are_refused(tmp_path: Path) -> None:
    import_captions(dataset(tmp_path / "x.json", image(7), image(9)), tmp_path / "data")
    with pytest.raises(ValueError, match=r"x.tsv, line 1: image 9 is not what .*train_ids.txt, line 1 names"):
        import_features(BottomUpFiles([write(tmp_path / "x.tsv", 9, 7)]), tmp_path / "data", "train")
    with pytest.raises(ValueError, match=r"y.tsv: 1 images, but .*train_ids.txt names 2"):
        import_features(BottomUpFiles([write(tmp_path / "y.tsv", 7)]), tmp_path / "data", "train")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "train_caps.txt", "train_ids.txt", "train_caption_ids.txt",
    }  # fmt: skip


def test_mistakes_are_one_line(tmp_path: Path, crossret: Cli) -> None:
    path = dataset(tmp_path / "x.json", image(7, captions=6), image(8, "val", 4))
    assert crossret("import-captions", path, "--output", tmp_path / "data", "--splits", "train=train,val=dev") == 0
    for options, message in (
        (["--splits", "train"], "--splits must be like train=train,val=dev, not 'train'"),
        (["--images", path], "--images needs --split"),
        (["--split", "x", "--splits", "a=b"], "--splits is for a file's own splits, and --split for none"),
        (["--split", "a/b"], "split must be a name"),
        (["--protocol", "published", "--captions-per-picture", "2"], "--captions-per-picture is not for --protocol"),
        (["--protocol", "published", "--split", "x"], f"{path}: images[1]: 8 has 4 captions, fewer than 5"),
        (["--captions-per-picture", "7", "--split", "x"], f"{path}: images[0]: 7 has 6 captions, fewer than 7"),
        (["--splits", "a=b"], "no images of a; left out: 1 images of split train; left out: 1 images of split val; "),
        ([], "train_caps.txt: is there already"),
    ):
        assert crossret("import-captions", path, "--output", tmp_path / "data", *options) == 2, options
        assert message in crossret.err and len(crossret.err.splitlines()) == 1
    for ending in ("caps.txt", "caption_ids.txt"):
        (tmp_path / f"data/train_{ending}").unlink()
    for name, contents, message in (
        ("ids.txt", "7\n9\n", f"train_ids.txt: image 9 has no captions in {path}"),
        ("image_of_caption.npy", "", "train_image_of_caption.npy: is there already"),
        ("words", "", "train_words: is there already"),  # tokens of captions that were there
    ):
        (tmp_path / f"data/train_{name}").write_text(contents)
        assert crossret("import-captions", path, "--output", tmp_path / "data", "--splits", "train=train") == 2
        assert message in crossret.err
        (tmp_path / f"data/train_{name}").unlink()


def test_an_id_goes_before_what_a_list_calls_another_image(tmp_path: Path) -> None:
    entries = [{"image": f"{3 - number}.jpg", "caption": "x", "image_id": number} for number in (1, 2)]
    (tmp_path / "x.json").write_text(json.dumps(entries))
    (tmp_path / "ids.txt").write_text("1\n2\n")
    import_captions(tmp_path / "x.json", tmp_path, split="test", listed=tmp_path / "ids.txt")
    assert (tmp_path / "test_ids.txt").read_text() == "1\n2\n"


@pytest.mark.parametrize("failing_call", [2, 8], ids=str)
def test_a_write_that_fails_leaves_nothing(failing_call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataset(tmp_path / "x.json", image(1), image(2, captions=6), image(3, "val"), image(4, "val", captions=6))
    calls: list[Path] = []

    def failing(write: Any) -> Any:
        def call(target: Path, *arguments: Any) -> Any:
            calls.append(target)
            if len(calls) == failing_call:
                raise OSError("the disk is full")
            return write(target, *arguments)

        return call

    monkeypatch.setattr(importing, "atomic_write", failing(importing.atomic_write))
    monkeypatch.setattr(importing, "write_owners", failing(importing.write_owners))
    with pytest.raises(OSError, match="the disk is full"):
        import_captions(path, tmp_path / "data")
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").glob("*.*"))
