"""The demo, small: every step runs, and what it leaves behind is complete and says the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from crossret.data import PrecomputedDataset
from crossret.demo import MARK, PICTURES, run_demo


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a demo leaves in the directory of an earlier one."""
    output = tmp_path_factory.mktemp("demo")
    for leftover in ("attention/99999.png", "model/checkpoint.safetensors", "scenes/images/test/00099.png"):
        (output / leftover).parent.mkdir(parents=True, exist_ok=True)
        (output / leftover).write_bytes(b"of an earlier demo")
    (output / MARK).write_text('{"format": "crossret demo 1"}')
    (output / "scenes" / "scenes.json").write_text('{"format": 1, "seed": 0, "counts": {}, "finished": false}')
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # nothing here is large enough for two
    try:
        with open(output / "printed.txt", "w") as file:
            run_demo(output, images=16, epochs=1, seed=3, console=Console(file=file, width=100))
    finally:
        torch.set_num_threads(threads)
    return output


def test_report(output: Path) -> None:
    report = json.loads((output / "report.json").read_text())
    assert report["images"] == {"train": 16, "dev": 2, "test": 4}
    assert report["scoring"]["pairs"] == 4 * 20
    assert report["scoring"]["pairs_per_second"] > 0
    scoring = report["scoring"]
    assert scoring["speed_up"] == pytest.approx(scoring["reference_seconds"] / scoring["fused_seconds"])
    game = report["pointing_game"]
    assert 0 <= game["centre_accuracy"] <= game["accuracy"] <= 1
    assert 0 < game["centre_chance"] < game["chance"] < 1
    assert report["machine"]["cpu"]
    assert report["seconds"].keys() == {"render", "train", "evaluate", "compare", "explain"}
    nouns = [
        json.loads(line)["named"] for line in (output / "scenes" / "test_grounding.jsonl").read_text().splitlines()
    ]
    assert report["pointing_game"]["nouns"] == sum(map(len, nouns))


def test_table_shows_the_reports_figures(output: Path) -> None:
    report = json.loads((output / "report.json").read_text())
    printed = (output / "printed.txt").read_text()
    assert f"rsum {report['retrieval']['rsum']:.1f}" in printed
    for figure in ("accuracy", "chance", "centre_accuracy", "centre_chance"):
        assert f"{report['pointing_game'][figure]:.1%}" in printed
    assert f"{report['pointing_game']['nouns']:,}" in printed
    assert f"{report['scoring']['pairs_per_second']:,.0f}" in printed


def test_pictures_are_those_of_the_report(output: Path) -> None:
    report = json.loads((output / "report.json").read_text())
    assert sorted(path.name for path in (output / "attention").iterdir()) == sorted(report["pictures"])
    assert len(report["pictures"]) == PICTURES
    for path in [output / "training.png", *(output / "attention").iterdir()]:
        with Image.open(path) as picture:
            assert picture.width > 800
            assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_model_and_scenes_can_be_used_again(output: Path) -> None:
    assert PrecomputedDataset(output / "scenes", "test").n_images == 4
    assert {path.name for path in (output / "model" / "best").iterdir()} == {
        "model.safetensors",
        "config.json",
        "vocabulary.json",
    }


@pytest.mark.parametrize("mark", [None, "{}", "{"])
def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, mark: str | None) -> None:
    foreign = ("attention/00001.png", "model/checkpoint.safetensors", "report.json", "scenes/train_ims.npy")
    for name in foreign:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not the demo's")
    if mark is not None:
        (tmp_path / MARK).write_text(mark)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((FileExistsError, ValueError), match=r"not empty, and not|not the mark|not JSON"):
        run_demo(tmp_path, images=16, epochs=1, seed=3, console=Console(quiet=True))
    assert sorted(tmp_path.rglob("*")) == before
    assert all((tmp_path / name).read_bytes() == b"not the demo's" for name in foreign)
