"""crossret explain: the table, the figures and the pictures, and data or models that it cannot use."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossret.data import PrecomputedDataset, Vocabulary, render_scenes
from crossret.data.scenes.layout import picture_path
from crossret.models import Mhsan, MhsanConfig, Scan, ScanConfig, Vse, VseConfig
from crossret.models.checkpoints import save_model
from tests.cli.command import Cli


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=2, dev=1, test=3, workers=1)
    return directory


@pytest.fixture(scope="module")
def models(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Untrained models by name."""
    data = PrecomputedDataset(scenes, "train")
    vocabulary = Vocabulary.build(data.captions)
    sizes = {"image_dim": data.image_dim, "vocabulary_size": len(vocabulary), "embed_dim": 8, "word_dim": 4}
    torch.manual_seed(0)
    made = {
        "scan": Scan(ScanConfig(**sizes)),
        "both": Scan(ScanConfig(**sizes, cross_attention="ensemble")),
        "vse": Vse(VseConfig(**sizes)),
        "mhsan": Mhsan(MhsanConfig(**sizes, feature_dim=8, attention_dim=4, heads=3, text_layers=1)),
    }
    paths = {}
    for name, model in made.items():
        paths[name] = tmp_path_factory.mktemp(name)
        save_model(model, paths[name], vocabulary)
    return paths


def test_figures_table_and_pictures(crossret: Cli, scenes: Path, models: dict[str, Path], tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    assert crossret("explain", models["mhsan"], scenes, "--output", drawn, "--draw", "2") == 0
    contents = json.loads((drawn / "figures.json").read_text())
    assert (contents["model"], contents["split"]) == ("mhsan", "test")
    assert [game["query"] for game in contents["pointing_game"]] == ["head 1", "head 2", "head 3", "all"]
    for game in contents["pointing_game"]:
        assert game["map"] == "heads"
        assert 0 < game["centre_chance"] < game["chance"] < 1
        assert f"{game['accuracy']:.1%}" in crossret.out
    assert sorted(path.name for path in drawn.glob("*.png")) == contents["pictures"]
    assert [int(name[:5]) // 5 for name in contents["pictures"]] == [0, 2]  # the first image and the last


def test_a_chosen_caption_is_drawn_beside_the_model(crossret: Cli, scenes: Path, models: dict[str, Path]) -> None:
    assert crossret("explain", models["both"], scenes, "--split", "dev", "--number", "3") == 0
    names = [path.name for path in sorted((models["both"] / "attention").glob("*.png"))]
    assert names == ["00003-i2t.png", "00003-t2i.png"]
    assert "dev: 1 images, 5 captions" in crossret.out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("{vse} {scenes}", "this vse model does not attend over regions"),
        ("{scan} {scenes} --number 15", "--number 15: test has captions 0 to 14"),
        ("{scan} {scenes} --number 1 --draw 2", "of --draw and --number only one"),
        ("{scan} {scenes} --split val", "val_ims.npy: no such file"),
        ("{scan} {bare}", "test_boxes.npy: no such file"),
        ("{scan} {scenes} --html page.html --output drawn", "--output is for pictures, without --html"),
        ("{scan} {scenes} --html page.html --draw 0", "--draw 0 draws nothing, and with --html"),
        ("{scan} {scenes} --html {scan}/config.json", "config.json: what is written would take the place of"),
        ("{scan} {scenes} --html {bare}/nowhere/page.html", "nowhere"),
        (
            "{scan} {photographed} --split train --photographs {photographed}/pictures",
            "train_ims.npy: its images have no names",
        ),
        ("{scan} {photographed} --photographs {empty}", "empty: no pictures in it"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    crossret: Cli,
    scenes: Path,
    photographed: Path,
    models: dict[str, Path],
    tmp_path: Path,
    command: str,
    message: str,
) -> None:
    for name in ("bare", "empty"):
        (tmp_path / name).mkdir()
    for name in ("test_ims.npy", "test_caps.txt"):
        shutil.copy(scenes / name, tmp_path / "bare")
    places = {**models, "scenes": scenes, "photographed": photographed, **{n: tmp_path / n for n in ("bare", "empty")}}
    assert message in crossret.refused("explain", *(word.format_map(places) for word in command.split()))


@pytest.mark.parametrize("name", ["scan", "vse"])
def test_a_page_of_any_model(crossret: Cli, scenes: Path, models: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Of scenes with their pictures; of features alone, which show numbered regions."""
    assert crossret("explain", models[name], scenes, "--html", tmp_path / "page.html") == 0
    contents = (tmp_path / "page.html").read_text()
    assert re.fullmatch(rf"{tmp_path}/page.html: [3-6] pairs, 0\.\d MB\n", crossret.out)
    assert contents.count("data:image/jpeg") == 3
    assert ('"numbered":false' in contents) == (name != "vse")
    for file in ("test_ims.npy", "test_caps.txt"):
        shutil.copy(scenes / file, tmp_path)
    assert crossret("explain", models[name], tmp_path, "--html", tmp_path / "bare.html", "--number", "4") == 0
    contents = (tmp_path / "bare.html").read_text()
    assert "data:image/jpeg" not in contents
    assert ('"numbered":true' in contents) == (name != "vse")


@pytest.fixture(scope="module")
def photographed(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes as a data directory without truth, and their pictures as photographs of MS-COCO are called."""
    directory = tmp_path_factory.mktemp("photographed")
    for path in scenes.glob("*"):
        if path.name in ("train_ims.npy", "train_caps.txt", "test_ims.npy", "test_caps.txt", "test_boxes.npy"):
            shutil.copy(path, directory)
    (directory / "test_ids.txt").write_text("391\n42\nred-ball\n")
    (directory / "pictures").mkdir()
    names = ["COCO_val2014_000000000391", "COCO_val2014_000000000042", "red-ball"]
    for number, name in enumerate(names):
        with Image.open(picture_path(scenes, "test", number)) as picture:
            picture.convert("RGB").save(directory / "pictures" / f"{name}.jpg")
    return directory


@pytest.mark.parametrize("boxes", [True, False])
def test_photographs_are_drawn_over(
    crossret: Cli, photographed: Path, models: dict[str, Path], tmp_path: Path, boxes: bool
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photographed, data)
    if not boxes:
        (data / "test_boxes.npy").unlink()
        features = np.load(data / "test_ims.npy")
        np.save(data / "test_ims.npy", features[:, : math.isqrt(features.shape[1]) ** 2])
    arguments = ("explain", models["both"], data, "--photographs", data / "pictures", "--output", tmp_path / "drawn")
    assert crossret(*arguments, "--draw", "2") == 0
    names = [f"{caption:05d}-{way}.png" for caption in (0, 10) for way in ("t2i", "i2t")]
    assert crossret.out == f"{tmp_path}/drawn: {', '.join(names)}\n"
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == sorted(names)
    assert crossret(*arguments, "--number", "7") == 0
    assert (tmp_path / "drawn" / "00007-t2i.png").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("391\n42\n", r"test_ids.txt: names 2 images, but test_ims.npy has 3"),
        ("391\n42 \n3\n", r"test_ids.txt, line 2: '42 ' is no name"),
    ],
)
def test_names_that_do_not_fit_are_refused(photographed: Path, tmp_path: Path, names: str, message: str) -> None:
    shutil.copytree(photographed, tmp_path / "data")
    (tmp_path / "data/test_ids.txt").write_text(names)
    with pytest.raises(ValueError, match=message):
        PrecomputedDataset(tmp_path / "data", "test")
