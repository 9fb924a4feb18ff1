"""What callbacks are told, and the logs that are written by them."""

from __future__ import annotations

import csv
import errno
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crossret.training import Callback
from crossret.training.callbacks import Csv, Curves, Epoch, Start, Step, TensorBoard, WeightsAndBiases
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, STEPS, SpoiltCorpus, assert_same_training, everything, make_model, run

EVERY_STEP = replace(CONFIG, log_every=1)


class Heard(Callback):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_start(self, start: Start) -> None:
        self.told.append(("start", start))

    def on_step(self, step: Step) -> None:
        self.told.append(("step", step))

    def on_log(self, line: Any, captions_per_second: float) -> None:
        assert captions_per_second > 0
        self.told.append(("log", line))

    def on_epoch(self, epoch: Epoch) -> None:
        self.told.append(("epoch", epoch))

    def on_end(self, result: Any) -> None:
        self.told.append(("end", result))

    def of(self, name: str) -> list[Any]:
        return [what for called, what in self.told if called == name]


def test_callbacks_are_told_steps_lines_epochs_and_the_result(tmp_path: Path) -> None:
    heard, model = Heard(), make_model()
    result = run(tmp_path, EVERY_STEP, model=model, callbacks=[heard])
    epoch = ["log", "step"] * 6 + ["log", "epoch"]
    assert [name for name, _ in heard.told] == ["start", *epoch * 3, "end"]
    (start,), steps, epochs, lines = heard.of("start"), heard.of("step"), heard.of("epoch"), heard.of("log")
    assert start == Start(tmp_path, model, EVERY_STEP, False, 0, 0, 6, [])
    _, logged, _ = everything(tmp_path)
    assert lines == logged
    of_steps = [line for line in lines if line["kind"] == "step"]
    for step, line in zip(steps, of_steps, strict=True):
        assert (step.epoch, step.step, step.terms["loss"]) == (line["epoch"], line["step"], line["loss"])
        assert (step.learning_rate, step.gradient_norm) == (line["learning_rate"], line["gradient_norm"])
        assert step.captions_per_second > 0
    for told, line in zip(epochs, (line for line in lines if line["kind"] == "epoch"), strict=True):
        assert (told.epoch, told.step, told.loss, told.best) == tuple(
            line[name] for name in ("epoch", "step", "loss", "best")
        )
        assert told.metrics.as_dict().items() <= line.items()
    assert heard.of("end") == [result]


def test_callbacks_are_told_what_there_was_before(tmp_path: Path) -> None:
    before, after = Heard(), Heard()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, EVERY_STEP, model=press_ctrl_c(make_model(), "loss", 9), callbacks=[before])
    assert before.told[-1] == ("end", None)
    run(tmp_path, EVERY_STEP, resume=True, callbacks=[after])
    (start,) = after.of("start")
    assert (start.resumed, start.epoch, start.step) == (True, 1, 8)
    assert start.lines == before.of("log")
    assert [step.step for step in before.of("step") + after.of("step")] == list(range(1, STEPS + 1))
    _, lines, _ = everything(tmp_path)
    assert before.of("log") + after.of("log") == lines


@pytest.mark.parametrize("call", ["on_log", "on_epoch"])
def test_a_callback_may_draw_and_end_a_training_that_goes_on_bit_for_bit(
    straight: Path, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Callback):
        def on_step(self, step: Step) -> None:
            torch.rand(3)

    def stop(self: Stop, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stop, call, stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[Stop()])
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_csv_files_hold_what_the_log_holds(straight: Path) -> None:
    run(straight, resume=True, callbacks=[Csv()])  # of a training that did not write them before
    _, lines, _ = everything(straight)
    for kind in ("step", "epoch"):
        with open(straight / f"{kind}s.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        wanted = [{name: str(value) for name, value in line.items() if name != "kind"} for line in lines]
        assert rows == [row for row, line in zip(wanted, lines, strict=True) if line["kind"] == kind]


def test_tensorboard_shows_every_line_once(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_step(self, step: Step) -> None:
            if step.step == 8:
                raise RuntimeError("three steps after the checkpoint")

    with pytest.raises(RuntimeError, match="three steps"):
        run(tmp_path, EVERY_STEP, callbacks=[TensorBoard(), Broken()])
    run(tmp_path, EVERY_STEP, resume=True, callbacks=[TensorBoard()])
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    _, lines, _ = everything(tmp_path)
    for kind, tag in (("step", "train/loss"), ("step", "train/learning_rate"), ("epoch", "dev/rsum")):
        expected = [(line["step"], line[tag.split("/")[1]]) for line in lines if line["kind"] == kind]
        events = [(event.step, event.value) for event in shown.Scalars(tag)]
        assert [step for step, _ in events] == [step for step, _ in expected]
        assert [value for _, value in events] == pytest.approx([value for _, value in expected])
    assert all(event.value > 0 for event in shown.Scalars("train/captions_per_second"))


class Wandb(ModuleType):
    """Stands in for wandb, as far as a training calls it."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.ends: list[int] = []

    def init(self, **options: Any) -> SimpleNamespace:
        if options.get("entity") == "nobody":
            raise self.Error("not logged in")
        self.inits.append(options)
        return SimpleNamespace(
            id=options.get("id") or "abc",
            define_metric=lambda name, step_metric: self.lines.append({"metric": name, "step_metric": step_metric}),
            log=self.lines.append,
            finish=lambda exit_code: self.ends.append(exit_code),
        )


def test_weights_and_biases_gets_every_line_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), "loss", 9), callbacks=[WeightsAndBiases(project="toys")])
    run(tmp_path, resume=True, callbacks=[WeightsAndBiases()])
    first, second = wandb.inits
    assert (first["project"], first["dir"], "id" in first) == ("toys", str(tmp_path), False)
    assert (second["id"], second["resume"], "project" in second) == ("abc", "allow", False)
    assert first["config"]["model"]["kind"] == "scan"
    assert first["config"]["training"]["learning_rate"] == CONFIG.learning_rate
    assert wandb.ends == [1, 0]
    axis = {"metric": "*", "step_metric": "step"}
    assert wandb.lines.count(axis) == 2
    _, lines, _ = everything(tmp_path)
    for told, line in zip([told for told in wandb.lines if told != axis], lines, strict=True):
        group = {"step": "train", "epoch": "dev"}[line["kind"]]
        figures = {name: value for name, value in line.items() if name not in ("kind", "epoch", "step", "best")}
        assert {f"{group}/{name}": value for name, value in figures.items()}.items() <= told.items()
        assert told["step"] == line["step"]
    with pytest.raises(ValueError, match="Weights & Biases: not logged in"):
        run(tmp_path, resume=True, callbacks=[WeightsAndBiases(entity="nobody")])


@pytest.mark.parametrize(
    ("callback", "module", "message"),
    [
        (TensorBoard(), "torch.utils.tensorboard", r"TensorBoard is not installed: pip install 'crossret\[tensorboard"),
        (WeightsAndBiases(), "wandb", r"Weights & Biases is not installed: pip install 'crossret\[wandb\]'"),
    ],
)
def test_what_is_not_installed_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Callback, module: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, callbacks=[callback])


def test_curves_are_drawn_as_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossret.training.callbacks._SECONDS", 0)
    there: list[bool] = []

    class Look(Callback):
        def on_epoch(self, epoch: Epoch) -> None:
            there.append((tmp_path / "curves.png").exists())
            (tmp_path / "curves.png").unlink()

    once = replace(CONFIG, epochs=1)
    run(tmp_path, once, callbacks=[Curves(), Look()])
    assert there == [True]
    run(tmp_path, once, resume=True, callbacks=[Curves()])
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 500


def test_a_picture_that_cannot_be_drawn_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "curves.png")

    monkeypatch.setattr("crossret.training.callbacks.draw_training", full)
    with pytest.warns(UserWarning, match="the curves are not drawn: .*No space left on device"):
        assert run(tmp_path / "whole", replace(CONFIG, epochs=1), callbacks=[Curves()]).epochs_run == 1
    with pytest.warns(UserWarning, match="not drawn"), pytest.raises(ValueError, match="image 11 are not finite"):
        run(tmp_path / "nan", EVERY_STEP, train_data=SpoiltCorpus(22), callbacks=[Curves()])
