"""`perturb`: what it writes and prints, and its mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from crossret.data import render_scenes
from tests.cli.command import TINY, Cli


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=4, dev=4, test=1, workers=1)
    return directory


def test_shuffled_captions_can_be_trained_on(crossret: Cli, scenes: Path, tmp_path: Path) -> None:
    assert crossret("perturb", scenes, "--output", tmp_path / "new", "--shuffle", "--seed", "3") == 0
    told = "20 of 20 captions of train changed; 0 stayed because nothing of them would have been left"
    assert crossret.out == f"{tmp_path / 'new'}: {told}\n"
    assert json.loads((tmp_path / "new" / "perturbation.json").read_text())["seed"] == 3
    assert crossret("train", tmp_path / "new", "--output", tmp_path / "run", "--epochs", "1", *TINY) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{new}"], "of --shuffle and --drop exactly one is needed"),
        (["{new}", "--shuffle", "--tagger", "x"], "--tagger makes no difference to --shuffle"),
        (["{new}", "--drop", "verb"], "pip install 'crossret[pos]'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    crossret: Cli,
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    places = {"data": data, "trained": trained, "new": tmp_path / "new"}
    assert crossret("perturb", data, "--output", *(argument.format_map(places) for argument in arguments)) == 2
    assert message.format_map(places) in crossret.err
    assert crossret.err.startswith("crossret: ")
    assert crossret.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
