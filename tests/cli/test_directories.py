"""Commands that make a directory: nothing is replaced, one process at a time, nothing is left of a failure."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from crossret.files.directories import new_directory, occupied
from tests.cli.command import TINY, Cli
from tests.compat.checkpoints.published import VOCABULARY, save, scan_checkpoint

NEW = {
    "import-scan": ["import-scan", "{made}/scan.pth.tar", "--output", "{output}", "--vocabulary", "{made}/vocab.json"],
    "encode": ["encode", "{trained}", "{data}", "--output", "{output}"],
    "shard": ["shard", "{made}", "--output", "{output}", "--shards", "2"],
    "perturb": ["perturb", "{data}", "--output", "{output}", "--shuffle"],
    "cluster-regions": ["cluster-regions", "{data}", "--output", "{output}", "--clusters", "2"],
}
SHARED = {
    "import-features": ["import-features", "{made}/features.npy", "--output", "{output}", "--split", "test"],
    "render-scenes": ["render-scenes", "--output", "{output}", "--train", "1", "--dev", "1", "--test", "1"],
    "train": ["train", "{data}", "--output", "{output}", "--epochs", "1", *TINY],
    "compare": ["compare", "{data}", "vse", "--output", "{output}"],
    "demo": ["demo", "--output", "{output}"],
}
ALL = NEW | SHARED


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    VOCABULARY.save(directory / "vocab.json")
    save(scan_checkpoint(), directory / "scan.pth.tar")
    np.save(directory / "features.npy", np.ones((3, 2, 4), np.float32))
    return directory


@pytest.fixture
def places(data: Path, trained: Path, made: Path, tmp_path: Path) -> dict[str, Path]:
    return {"data": data, "trained": trained, "made": made, "output": tmp_path / "out"}


def error_of(crossret: Cli, command: list[str], places: dict[str, Path]) -> str:
    """The one line of a command that fails."""
    assert crossret(*(argument.format_map(places) for argument in command)) == 2
    assert crossret.err.count("\n") == 1
    assert crossret.out == ""
    return crossret.err


@pytest.mark.parametrize("command", NEW.values(), ids=NEW)
def test_what_is_there_is_not_replaced(crossret: Cli, places: dict[str, Path], command: list[str]) -> None:
    output = places["output"]
    output.mkdir()
    for name in ("model.safetensors", "checkpoint.safetensors"):
        (output / name).write_text("a model that took days")
        refused = f"crossret: {output}: not empty; choose a new or an empty directory\n"
        assert error_of(crossret, command, places) == refused
        assert (output / name).read_text() == "a model that took days"
        (output / name).unlink()
    assert crossret(*(argument.format_map(places) for argument in command)) == 0, crossret.err
    assert not {name for name in os.listdir(output) if name.startswith(".")}


@pytest.mark.parametrize("command", ALL.values(), ids=ALL)
def test_of_two_at_once_the_second_is_told(crossret: Cli, places: dict[str, Path], command: list[str]) -> None:
    output = places["output"]
    at_work = new_directory if command in NEW.values() else occupied
    with at_work(output):
        assert error_of(crossret, command, places).startswith(
            f"crossret: {output}: in use by process {os.getpid()} on "
        )
    assert os.listdir(output) == []
