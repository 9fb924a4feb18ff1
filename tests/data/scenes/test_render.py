"""render_scenes: the files it promises, for any number of workers; when it is finished; what it must not touch."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from PIL import Image

from crossret.data import PrecomputedDataset, render_scenes
from crossret.data.scenes.features import region_features
from crossret.data.scenes.regions import grid_boxes
from tests.processes import started_program

COUNTS = {"train": 6, "dev": 2, "test": 3}


def finished(directory):
    return json.loads((directory / "scenes.json").read_text())["finished"]


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parent") / "scenes"
    render_scenes(directory, **COUNTS, seed=3, workers=1)
    return directory


def test_the_files_are_the_promised_ones(scenes):
    names = {f"{split}_{name}" for split in COUNTS for name in ("ims.npy", "caps.txt", "boxes.npy", "grounding.jsonl")}
    names |= {f"images/{split}/{index:05d}.png" for split, count in COUNTS.items() for index in range(count)}
    assert set(contents(scenes)) == names | {"scenes.json"}
    assert json.loads((scenes / "scenes.json").read_text()) == {
        "format": 1,
        "seed": 3,
        "counts": COUNTS,
        "grid": False,
        "finished": True,
    }


def test_features_follow_from_the_pictures_and_the_boxes(scenes):
    boxes = np.load(scenes / "train_boxes.npy")
    features = PrecomputedDataset(scenes, "train").features
    for index in range(COUNTS["train"]):
        with Image.open(scenes / "images" / "train" / f"{index:05d}.png") as image:
            assert (image.size, image.mode) == ((224, 224), "RGB")
            np.testing.assert_array_equal(features[index], region_features(np.asarray(image), boxes[index]))


def test_a_grid_changes_the_regions_alone(scenes, tmp_path):
    render_scenes(tmp_path, **COUNTS, seed=3, grid=True, workers=1)
    cells, proposals = contents(tmp_path), contents(scenes)
    changed = {f"{split}_{name}.npy" for split in COUNTS for name in ("ims", "boxes")} | {"scenes.json"}
    assert {name for name in proposals.keys() | cells.keys() if proposals.get(name) != cells.get(name)} == changed
    assert json.loads(cells["scenes.json"]) == {**json.loads(proposals["scenes.json"]), "grid": True}
    data = PrecomputedDataset(tmp_path, "test")
    assert data.features.shape == (COUNTS["test"], 49, 256)
    np.testing.assert_array_equal(data.boxes, np.stack([grid_boxes()] * COUNTS["test"]))
    with Image.open(tmp_path / "images" / "test" / "00001.png") as image:
        np.testing.assert_array_equal(data.features[1], region_features(np.asarray(image), grid_boxes()))


def test_any_number_of_workers_writes_the_same_bytes(scenes, tmp_path):
    render_scenes(tmp_path / "two", **COUNTS, seed=3, workers=2)
    assert contents(tmp_path / "two") == contents(scenes)


def test_another_seed_and_another_split_are_other_scenes(scenes, tmp_path):
    render_scenes(tmp_path, **COUNTS, seed=4, workers=1)
    ours, theirs = contents(scenes), contents(tmp_path)
    assert not [name for name in ours if ours[name] == theirs[name]]
    assert ours["images/dev/00000.png"] != ours["images/test/00000.png"]


def test_an_interrupted_rendering_has_no_finished_manifest(tmp_path):
    def interrupt(done, total):
        assert (done, total) == (2, 4)
        raise KeyboardInterrupt

    render_scenes(tmp_path, train=1, dev=1, test=1, workers=1)
    assert finished(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        render_scenes(tmp_path, train=2, dev=1, test=1, workers=1, progress=interrupt)
    assert not finished(tmp_path)
    render_scenes(tmp_path, train=1, dev=1, test=1, workers=1)
    render_scenes(tmp_path / "fresh", train=1, dev=1, test=1, workers=1)
    fresh = contents(tmp_path / "fresh")
    assert {name: bytes_ for name, bytes_ in contents(tmp_path).items() if not name.startswith("fresh")} == fresh


PROGRAM = """
import sys
from crossret.data import render_scenes
def report(done, total):
    print("ready", flush=True)
    sys.stdin.read()
render_scenes(sys.argv[1], train=500, dev=2, test=2, workers=2, progress=report)
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_rendering_that_is_killed_or_interrupted_has_no_finished_manifest(tmp_path, blow):
    render_scenes(tmp_path, train=1, dev=1, test=1, workers=1)
    with started_program(PROGRAM, tmp_path) as process:
        process.send_signal(blow)
        errors = process.stderr.read()  # ends when the last process that could write to it has ended
    assert process.returncode == -blow
    assert not finished(tmp_path)
    assert (b"KeyboardInterrupt" in errors) is (blow == signal.SIGINT)
    assert len(list((tmp_path / "images" / "train").iterdir())) < 500


def test_other_files_beside_the_scenes_are_left_alone(tmp_path):
    render_scenes(tmp_path, train=2, dev=1, test=1, workers=1)
    for name in ("notes.txt", "images/train/mine.png"):
        (tmp_path / name).write_text("mine")
    render_scenes(tmp_path, train=1, dev=1, test=1, workers=1)
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "images/train/mine.png").read_text() == "mine"
    assert not (tmp_path / "images" / "train" / "00001.png").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train_ims.npy", "mine"),
        ("scenes.json", "mine"),
        ("scenes.json", '{"scenes": ["mine"]}'),
    ],
)
def test_data_of_others_is_not_written_over(tmp_path, name, text):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(FileExistsError, match=f"^{tmp_path}: not empty, .* choose a new or an empty directory"):
        render_scenes(tmp_path, train=1, dev=1, test=1, workers=1)
    assert contents(tmp_path) == {name: text.encode()}


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("dev", 100_001, "dev must be at most 100,000 images, got 100,001"),
        ("train", 0, "train must be at least 1 image"),
    ],
)
def test_a_number_out_of_bounds(tmp_path, argument, value, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        render_scenes(tmp_path / "scenes", **{argument: value})
    assert not (tmp_path / "scenes").exists()
