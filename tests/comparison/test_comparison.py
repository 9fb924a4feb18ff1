"""Comparisons: commands are run as they are typed, finished variants are kept, figures are the same in every place."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crossret import cli
from crossret.comparison import comparison
from crossret.comparison.comparison import run_command
from crossret.comparison.table import cells_of
from crossret.data import render_scenes
from tests.cli.command import Cli, start

pytestmark = pytest.mark.usefixtures("one_thread")

SCAN = "scan embed_dim=8 word_dim=4 epochs=2 batch_size=16 log_every=2"
MHSAN = "mhsan feature_dim=8 embed_dim=8 word_dim=4 attention_dim=4 heads=2 epochs=1"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison") / "scenes"
    render_scenes(directory, train=8, dev=4, test=4, seed=0, workers=1)
    return directory


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that ran, in this process; where the last one here is None, the next is interrupted."""
    ran: list[Any] = []

    def run(words: Sequence[str]) -> float:
        if ran and ran[-1] is None:
            raise KeyboardInterrupt
        ran.append(words)
        with pytest.raises(SystemExit) as exit_:
            cli.main(words)
        assert not exit_.value.code
        return 512.0

    monkeypatch.setattr(comparison, "run_command", run)
    return ran


def report(output: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((output / "compare.json").read_text())
    return contents


def test_what_a_comparison_leaves_behind(
    crossret: Cli, scenes: Path, tmp_path: Path, ran: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = tmp_path / "new" / "out"
    conditions = ["--seed", "3", "--epochs", "1", "--threads", "1"]
    assert crossret("compare", scenes, MHSAN.replace(" epochs=1", ""), SCAN, "--output", output, *conditions) == 0
    training, evaluation, other, _ = ran
    assert training[:2] == ["train", str(scenes)]
    assert {"--set", "heads=2", "epochs=1", "--seed", "3", "--threads", "scenes"} <= set(training)
    assert "epochs=2" in other
    assert evaluation[:3] == ["evaluate", training[training.index("--output") + 1], str(scenes)]
    mhsan, scan = report(output)["variants"]
    assert "embed_dim=8" in scan["settings"]
    assert (scan["training"]["epochs"], mhsan["training"]["epochs"]) == (2, 1)
    assert (scan["training"]["seconds_known"], scan["training"]["peak_mebibytes"]) == (True, 512)
    (model,) = scan["evaluation"]["models"]
    assert model["pointing_game"][0]["map"] == "t2i"
    assert model["pairs_per_second"] == pytest.approx(4 * 20 / model["scoring_seconds"])
    weights = (output / SCAN.replace(" ", "-") / "best" / "model.safetensors").stat().st_size
    assert 0 < 4 * model["parameters"] < weights
    for text in (crossret.out, (output / "compare.md").read_text()):
        assert f"{scan['evaluation']['rsum']:.1f}" in text
        assert SCAN in " ".join(text.split())
    with Image.open(output / "compare.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_finished_variants_are_kept_and_others_go_on(
    crossret: Cli, scenes: Path, tmp_path: Path, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compare", scenes, SCAN, MHSAN, "--output", tmp_path, "--threads", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_evaluate", lambda *_: ran.append(None))
        assert crossret(*command) == 2  # the first has no evaluation
    assert crossret(*command) == 130
    assert crossret.err.endswith(f"crossret: interrupted; {tmp_path} holds what was done, the same command goes on\n")
    ran.clear()
    assert crossret(*command) == 0, crossret.err
    assert [(words[0], "--resume" in words) for words in ran] == [
        ("evaluate", False), ("train", False), ("evaluate", False)
    ]  # fmt: skip
    ran.clear()
    assert crossret(*command) == 0
    assert not ran
    assert f"{SCAN} (1 of 2): finished before" in " ".join(crossret.out.split())
    # Other settings, data or a training that is none, in the same place.
    assert crossret(*command, "--seed", "1") == 2
    assert f"{tmp_path / SCAN.replace(' ', '-')}/run.toml has seed 0, not 1; choose another directory" in crossret.err
    assert crossret(*command, "--preset", "f30k_t2i_avg") == 2
    assert crossret(*command, "--split", "dev") == 2
    assert "evaluation.json has split test, not dev; choose another directory" in crossret.err
    assert crossret("compare", scenes, "vse", "--output", tmp_path, "--split", "dev") == 2
    assert "compare.json has split test, not dev; choose another directory" in crossret.err
    assert not ran
    log = tmp_path / SCAN.replace(" ", "-") / "log.jsonl"
    lines = log.read_text()
    log.write_text("")
    assert crossret(*command) == 2
    assert f"{SCAN.replace(' ', '-')}: not a finished variant (IndexError: " in crossret.err
    log.write_text(lines)
    (tmp_path / MHSAN.replace(" ", "-") / "evaluation.json").write_text("{}")
    assert crossret(*command) == 2
    assert f"{MHSAN.replace(' ', '-')}: not a finished variant (KeyError: 'models'); remove it" in crossret.err


@pytest.mark.parametrize("killed", [False, True])
def test_seconds_of_an_interrupted_training_add_up(
    crossret: Cli, scenes: Path, tmp_path: Path, ran: list[Any], killed: bool
) -> None:
    directory = tmp_path / MHSAN.replace(" ", "-")
    directory.mkdir()
    record = {"seconds": 1000.0, "seconds_known": True, "sessions": 1, "finished": False, "running": killed}
    (directory / "training.json").write_text(json.dumps({**record, "peak_mebibytes": None}))
    assert crossret("compare", scenes, MHSAN, "--output", tmp_path, "--threads", "1") == 0
    (result,) = report(tmp_path)["variants"]
    training = result["training"]
    assert training["seconds"] > 1000
    assert (training["sessions"], training["seconds_known"], training["running"]) == (2, not killed, False)
    assert cells_of(result)["train s"].startswith("> 1,0" if killed else "1,0")
    assert cells_of(result)["train s"].endswith("*")


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (["scan", "scan layers=1"], "variant 'scan layers=1': layers: scan has no such setting; han has"),
        (["scan", "han clusters=99"], "variant 'han clusters=99': {scenes}/train_ims.npy: images have "),
        (["sman"], "variant 'sman': {scenes}/dev_boxes.npy: no such file, but"),
        (["scan p=2", "vse"], "variant 'scan p=2': p: scan has no such setting; han has"),
        (["vse", "vse"], "variant 'vse': given twice"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    crossret: Cli, scenes: Path, tmp_path: Path, ran: list[Any], variants: list[str], message: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(scenes, data)
    (data / "dev_boxes.npy").unlink()
    assert crossret("compare", data, *variants, "--output", tmp_path / "out") == 2
    assert crossret.err.startswith(f"crossret: {message.format(scenes=data)}")
    assert crossret.err.count("\n") == 1
    assert not ran
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_has_said_why(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match=f"^crossret evaluate {tmp_path} failed, as it says$"):
        run_command(["evaluate", str(tmp_path), str(tmp_path)])
    assert capfd.readouterr().err.startswith(f"crossret: {tmp_path}/test_ims.npy: no such file")
    assert (run_command(["--version"]) or 99) > 9
    assert capfd.readouterr().out == ""


def test_the_same_command_goes_on_after_ctrl_c(crossret: Cli, scenes: Path, tmp_path: Path) -> None:
    """In processes of their own: the training has left a checkpoint, and nothing of it runs any more."""
    output = tmp_path / "out"
    command = ["compare", scenes, SCAN.replace("epochs=2", "epochs=9"), "--output", output, "--threads", "1"]
    with start(*command) as process:
        while process.poll() is None and not any(log.stat().st_size for log in output.glob("*/log.jsonl")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert f"crossret: interrupted; {output} holds what was done, the same command goes on\n" in err
    assert "Traceback" not in err
    (directory,) = output.iterdir()
    assert (directory / "checkpoint.safetensors").exists()
    before = json.loads((directory / "training.json").read_text())
    assert (before["finished"], before["running"], before["seconds_known"]) == (False, False, True)
    assert crossret(*command) == 0
    (result,) = report(output)["variants"]
    assert (result["training"]["epochs"], result["training"]["sessions"]) == (9, 2)
    assert result["training"]["seconds"] > before["seconds"] > 0
    assert result["training"]["peak_mebibytes"] > 50
