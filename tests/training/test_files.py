"""The files of a training: the same from the same training, of one process at a time, and in other programs' forms."""

from __future__ import annotations

import csv
import errno
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crossret.files.locks import LOCK
from crossret.training import train
from crossret.training.curves import Curves
from crossret.training.log import CsvFollower
from tests.training import toy
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, DEV, TRAIN, everything, make_model, run


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_the_same_training_writes_the_same_bytes(tmp_path: Path) -> None:
    for directory in (tmp_path / "here", tmp_path / "there"):
        train(make_model(), TRAIN, DEV, CONFIG, directory, progress=False, csv=True)
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert here == there
    best = {f"best/{name}" for name in ("config.json", "model.safetensors", "vocabulary.json")}
    assert here.keys() == best | {"checkpoint.safetensors", "curves.png", "epochs.csv", "log.jsonl", "steps.csv"}


def test_an_interrupted_training_ends_with_the_same_bytes(tmp_path: Path) -> None:
    train(make_model(), TRAIN, DEV, CONFIG, tmp_path / "straight", progress=False, csv=True)
    others: dict[str, Any] = {"csv": True, "curves": True}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", model=press_ctrl_c(make_model(), "loss", 10), **others)
    run(tmp_path / "resumed", resume=True, **others)
    assert contents(tmp_path / "straight") == contents(tmp_path / "resumed")


def test_csv_files_hold_what_the_log_holds(tmp_path: Path) -> None:
    run(tmp_path, csv=True)
    _, lines, _ = everything(tmp_path)
    for kind in ("step", "epoch"):
        with open(tmp_path / f"{kind}s.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        wanted = [{name: str(value) for name, value in line.items() if name != "kind"} for line in lines]
        assert rows == [row for row, line in zip(wanted, lines, strict=True) if line["kind"] == kind]


def test_csv_files_may_be_asked_for_later(straight: Path) -> None:
    run(straight, resume=True, csv=True)
    with open(straight / "epochs.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_tensorboard_shows_every_line_once(tmp_path: Path) -> None:
    config = replace(CONFIG, log_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, config, model=press_ctrl_c(make_model(), "loss", 9), tensorboard=True)
    run(tmp_path, config, resume=True, tensorboard=True)
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    _, lines, _ = everything(tmp_path)
    for kind, tag in (("step", "train/loss"), ("step", "train/learning_rate"), ("epoch", "dev/rsum")):
        expected = [(line["step"], line[tag.split("/")[1]]) for line in lines if line["kind"] == kind]
        events = [(event.step, event.value) for event in shown.Scalars(tag)]
        assert [step for step, _ in events] == [step for step, _ in expected]
        assert [value for _, value in events] == pytest.approx([value for _, value in expected])
    assert all(event.value > 0 for event in shown.Scalars("train/captions_per_second"))


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"TensorBoard is not installed: pip install 'crossret\[tensorboard\]'"):
        run(tmp_path, tensorboard=True)


def test_curves_are_drawn_as_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossret.training.curves._SECONDS", 0)
    sizes: list[bool] = []
    draw = Curves.draw

    def count(self: Curves) -> None:
        draw(self)
        sizes.append((tmp_path / "curves.png").exists())

    monkeypatch.setattr(Curves, "draw", count)
    run(tmp_path, curves=True)
    assert sizes == [True] * 4  # after each epoch, and in the end
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 500


def test_a_picture_that_cannot_be_drawn_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "curves.png")

    monkeypatch.setattr("crossret.training.curves.draw_training", full)
    with pytest.warns(UserWarning, match="the curves are not drawn: .*No space left on device"):
        assert run(tmp_path / "whole", curves=True).epochs_run == CONFIG.epochs
    with pytest.warns(UserWarning, match="not drawn"), pytest.raises(ValueError, match="image 11 are not finite"):
        run(tmp_path / "nan", replace(CONFIG, log_every=1), train_data=toy.SpoiltCorpus(22), curves=True)


def test_what_went_wrong_is_told_before_what_closing_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "first")

    def closed(self: CsvFollower) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "second")

    model = make_model()
    model.text.embed.weight.requires_grad_(False)
    monkeypatch.setattr("crossret.training.loop.save_state", full)
    monkeypatch.setattr(CsvFollower, "close", closed)
    with pytest.raises(OSError) as caught:
        run(tmp_path, model=model, csv=True)
    assert caught.value.filename == "first"
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == {
        "text.embed.weight"
    }


def test_two_processes_do_not_train_in_one_directory(tmp_path: Path) -> None:
    def second(_: object) -> None:
        with pytest.raises(BlockingIOError, match=r"in use by process \d+ on .*; wait for it or choose another"):
            run(tmp_path)

    run(tmp_path, replace(CONFIG, epochs=1), on_start=second)
    run(tmp_path, resume=True)  # free again


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[", "line 1: not JSON"),
        ("{}", "line 1: not a line of a training's log: it has no 'kind'"),
        ('{"kind": "step", "step": 1}', "line 1: not a line of a training's log: it has no 'epoch'"),
        ('{"kind": [], "loss": 1}', r"line 1: not a line of a training's log: its kind is \[\]"),
        ('{"kind": "epoch", "loss": "a"}', "line 1: not a line of a training's log: it has no 'epoch'"),
    ],
)
def test_a_log_that_is_damaged_before_the_checkpoint_is_named(
    straight: Path, tmp_path: Path, line: str, message: str
) -> None:
    for name in ("checkpoint.safetensors", "log.jsonl"):
        (tmp_path / name).write_bytes((straight / name).read_bytes())
    first, _, rest = (tmp_path / "log.jsonl").read_bytes().partition(b"\n")
    (tmp_path / "log.jsonl").write_bytes(line.encode().ljust(len(first)) + b"\n" + rest)
    with pytest.raises(ValueError, match=rf"log.jsonl, {message}"):
        run(tmp_path, resume=True)


def test_a_loss_that_is_not_a_number_names_the_image(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(epoch 1\): the features of training image 11 are not finite"):
        run(tmp_path, train_data=toy.SpoiltCorpus(22, float("inf")))
    assert all(json.loads(line)["loss"] < 1e9 for line in (tmp_path / "log.jsonl").read_text().splitlines())
