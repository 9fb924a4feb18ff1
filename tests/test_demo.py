"""The demo, small: every step runs, and what it leaves behind is complete and says the same everywhere."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from crossret.demo import MARK, PICTURES, run_demo
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.models import load_model
from tests.explain.test_page import data_of


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
            run_demo(output, model="scan", images=16, epochs=1, seed=3, console=Console(file=file, width=100))
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
    (game,) = report["pointing_game"]
    assert (game["map"], game["query"]) == ("t2i", "nouns")
    assert 0 <= game["centre_accuracy"] <= game["accuracy"] <= 1
    assert 0 < game["centre_chance"] < game["chance"] < 1
    assert report["machine"]["cpu"]
    assert report["seconds"].keys() == {"render", "train", "evaluate", "compare", "explain"}
    nouns = [
        json.loads(line)["named"] for line in (output / "scenes" / "test_grounding.jsonl").read_text().splitlines()
    ]
    assert game["asked"] == sum(map(len, nouns))
    printed = (output / "printed.txt").read_text()
    assert f"rsum {report['retrieval']['rsum']:.1f}" in printed and f"{game['accuracy']:.1%}" in printed
    assert f"Open {output / 'report.html'} " in printed
    own = [pair for pair in data_of(output / "report.html")["pairs"] if not pair.get("other")]
    assert len(own) == 4 and all(pair["objects"] and pair["picture"] is not None for pair in own)


def test_pictures_are_those_of_the_report(output: Path) -> None:
    report = json.loads((output / "report.json").read_text())
    assert sorted(path.name for path in (output / "attention").iterdir()) == sorted(report["pictures"])
    assert len(report["pictures"]) == PICTURES
    for path in [output / "model" / "curves.png", *(output / "attention").iterdir()]:
        with Image.open(path) as picture:
            assert picture.width > 800
            assert len(np.unique(np.asarray(picture.convert("L")))) > 50


@pytest.mark.parametrize("model", [model for model in MODEL_CONFIGS if model != "scan"])
def test_every_model_has_a_demo(
    output: Path, tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.delenv("CROSSRET_BACKEND", raising=False)
    monkeypatch.setattr("crossret.demo.PICTURES", 0)
    monkeypatch.setattr("crossret.explain.split.ScoredSplit.of", None)  # all has been scored before
    # The same scenes as above: they depend on the seed and the counts alone.
    monkeypatch.setattr("crossret.demo.render_scenes", lambda scenes, **_: shutil.copytree(output / "scenes", scenes))
    printed = io.StringIO()
    console = Console(file=printed, width=100)
    report = run_demo(tmp_path, model=model, images=16, epochs=1, seed=3, console=console)
    assert report["model"]["kind"] == model
    assert f"Training {model.upper()} for 1 epochs" in printed.getvalue()
    compared = model not in ("mhsan", "vse", "laps")
    assert ("speed_up" in report["scoring"]) is ("compare" in report["seconds"]) is compared
    maps = list(dict.fromkeys(game["map"] for game in report["pointing_game"]))
    expected = {
        "sman": ["steps"],
        "han": ["t2i"],
        "mhsan": ["heads"],
        "oan": ["t2i", "i2t", "heads"],
        "vse": [],
        "laps": ["t2i", "i2t"],
    }
    assert maps == expected[model]
    for game in report["pointing_game"]:
        assert f"{game['accuracy']:.1%}" in printed.getvalue()
    assert "CROSSRET_BACKEND" not in os.environ


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
        run_demo(tmp_path, model="scan", images=16, epochs=1, seed=3, console=Console(quiet=True))
    assert sorted(tmp_path.rglob("*")) == before
    assert all((tmp_path / name).read_bytes() == b"not the demo's" for name in foreign)


def test_from_pictures(output: Path, tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the scenes only the pictures are there, and the encoder that reads them has learnt."""
    pytest.importorskip("transformers", reason="encoders are those of transformers")
    from crossret.extraction import load_picture_encoder

    def pictures_alone(scenes: Path, **_: object) -> None:
        shutil.copytree(output / "scenes", scenes, ignore=shutil.ignore_patterns("*.npy"))

    monkeypatch.setattr("crossret.demo.PICTURES", 1)
    monkeypatch.setattr("crossret.demo.render_scenes", pictures_alone)
    console = Console(file=io.StringIO(), width=100)
    report = run_demo(tmp_path, model="scan", images=16, epochs=1, seed=3, console=console, from_pictures=True)
    before = load_picture_encoder(tmp_path / "encoder").module
    assert report["encoder"] == {"kind": "ResNetModel", "parameters": sum(map(torch.numel, before.parameters()))}
    trained, _ = load_model(tmp_path / "model" / "best")
    for name, weight in trained.encoder.module.named_parameters():
        assert not torch.equal(weight, before.get_parameter(name)), name
    (game,) = report["pointing_game"]
    assert 0 < game["centre_chance"] < game["chance"] < 1 / 4  # of 49 cells
    pair, *_ = data_of(tmp_path / "report.html")["pairs"]
    assert pair["regions"] == 49 and pair["picture"] is not None
    (drawn,) = report["pictures"]
    with Image.open(tmp_path / "attention" / drawn) as picture:
        assert picture.width > 800
