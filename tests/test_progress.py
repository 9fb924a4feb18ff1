"""What is said of a long task where standard error is no terminal: a line where nothing was said for 30 seconds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from crossret import progress
from crossret.evaluation import DirectionMetrics, RetrievalMetrics
from crossret.progress import ProgressLines
from crossret.terminal import progress_bar
from crossret.training import TrainingConfig
from crossret.training.callbacks import Epoch, Start, Step
from crossret.training.progress import TerminalProgress

WAY = DirectionMetrics(10.0, 20.0, 30.0, 4.0, 5.0)
METRICS = RetrievalMetrics(WAY, WAY)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(progress, "_LOOK", 3600.0)  # the tests look
    return Clock()


def test_silence_is_broken_after_30_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(lambda: "[red]encoding", clock=clock) as lines:
        clock.now += 29.9
        lines.look()
        assert capsys.readouterr().err == ""
        clock.now += 0.1
        lines.look()
        lines.look()
        assert capsys.readouterr().err == "[red]encoding\n"
        clock.now += 29
        lines.say("something else")
        clock.now += 29
        lines.look()
        assert capsys.readouterr().err == "something else\n"
        clock.now += 1
        lines.look()
        assert capsys.readouterr().err == "[red]encoding\n"


def start(epochs: int, step: int, epoch_steps: int) -> Start:
    config = TrainingConfig(epochs=epochs)
    return Start(Path(), cast(Any, None), config, step > 0, step // epoch_steps, step, epoch_steps, [])


def test_a_training_says_where_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> str:
        show.lines.look()
        return capsys.readouterr().err

    show = TerminalProgress(clock=clock)
    show.on_start(start(30, 13600 + 1190, 6800))
    clock.now += 30
    assert said() == "training\n"
    show.on_step(Step(3, 13600 + 1200, {"loss": 4.21119}, 1e-3, 1.0, 640.4))
    clock.now += 29
    assert said() == ""
    clock.now += 1
    # Ten steps took 60 seconds; there are 189,200 left.
    assert said() == "epoch 3/30  step 1,200/6,800  loss 4.211  640 captions/s  315:20:00 left\n"
    show.on_step(Step(3, 20400, {"loss": 4.2}, 1e-3, 1.0, 640.4))
    clock.now += 60
    assert said().startswith("epoch 3/30  validating  ")
    clock.now += 29
    show.on_epoch(Epoch(3, 20400, 4.2, METRICS, True, 640.4))
    clock.now += 29
    assert said() == "epoch 3  loss 4.200  R@1 10.0 / 10.0  rsum 120.0  640 captions/s  best so far\n"
    show.on_end(None)


def test_other_commands_say_how_far_they_are(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing calls them meanwhile: a thread looks at the clock."""
    looked, look = threading.Event(), ProgressLines.look

    def watched(self: ProgressLines) -> None:
        look(self)
        if clock.now > 1060:
            looked.set()

    monkeypatch.setattr(progress, "_LOOK", 1e-4)
    monkeypatch.setattr(ProgressLines, "look", watched)
    with progress_bar("encoding", clock=clock) as show:
        show(1200, 6000)
        clock.now += 100
        assert looked.wait(60)
    assert capsys.readouterr().err == "encoding  1,200/6,000  0:06:40 left\n"


def test_speed_and_time_left_are_those_of_what_is_done_now(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 of which an earlier process did 600."""
    entered: list[ProgressLines] = []
    enter = ProgressLines.__enter__
    monkeypatch.setattr(ProgressLines, "__enter__", lambda self: entered.append(self) or enter(self))
    with progress_bar("pictures", speed=True, clock=clock) as show:
        clock.now += 100  # loading
        show(600, 1000)
        clock.now += 40
        show(800, 1000)
        entered[0].look()
    assert capsys.readouterr().err == "pictures  800/1,000  5.0/s  0:00:40 left\n"
