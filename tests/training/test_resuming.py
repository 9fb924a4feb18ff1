"""A training that is interrupted or killed goes on bit for bit."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.models import Scan
from crossret.training import ResumedElsewhere
from tests.processes import started
from tests.training import toy
from tests.training.toy import (
    CONFIG,
    STEPS,
    DroppingScan,
    assert_same_training,
    checkpoint_tensors,
    everything,
    make_model,
    run,
)


def press_ctrl_c(model: Scan, method: str, call: int) -> Scan:
    """The model, at whose ``call``-th call of ``method`` Ctrl-C is pressed."""
    original, calls = getattr(model, method), itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    setattr(model, method, wrapped)
    return model


@pytest.mark.parametrize(
    ("method", "call"),
    [
        *(("loss", step) for step in (1, 2, 5, 6, 7, 13, STEPS)),  # at checkpoints and between, at ends of epochs
        ("encode_captions", 7),  # in the first validation
        ("score", 14),  # in the second
    ],
)
def test_an_interrupted_training_goes_on_bit_for_bit(straight: Path, tmp_path: Path, method: str, call: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), method, call))
    torch.manual_seed(1)  # neither the weights nor the generators that are there on resuming matter
    result = run(tmp_path, model=DroppingScan(make_model().config), resume=True)
    assert result.epochs_run == 3
    assert_same_training(tmp_path, straight)


def test_an_interruption_loses_no_step(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), "loss", 5))
    tensors = checkpoint_tensors(tmp_path)
    assert tensors["optimizer.step.image.fc.bias"].item() == 4


@pytest.mark.parametrize("call", [4, 6, 8])
def test_ctrl_c_during_an_update_waits_for_its_end(
    straight: Path, tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = torch.optim.Adam.step, itertools.count(1)

    def step(self: torch.optim.Adam) -> None:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    tensors = checkpoint_tensors(tmp_path)
    assert tensors["optimizer.step.image.fc.bias"].item() == call
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_killed_again_and_again_it_goes_on_bit_for_bit(straight: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for kill in range(3):
        with started(
            [sys.executable, toy.__file__, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        ) as trainer:
            # Checkpoints are written at every step, so the kill falls into a write or right beside one.
            while trainer.poll() is None and (not log.is_file() or log.read_bytes().count(b"\n") <= kill):
                time.sleep(0.001)
            trainer.send_signal(signal.SIGKILL)
        checkpoint_tensors(tmp_path)
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_a_finished_training_resumes_to_its_result(straight: Path) -> None:
    before = everything(straight)
    result = run(straight, resume=True)
    assert str(everything(straight)) == str(before)
    epochs = [line for line in before[1] if line["kind"] == "epoch"]
    assert result.best_rsum == max(line["rsum"] for line in epochs)
    assert result.metrics.as_dict()["rsum"] == result.best_rsum


def test_more_epochs_can_be_added(tmp_path: Path, straight: Path) -> None:
    run(tmp_path, replace(CONFIG, epochs=1))
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_lines_of_the_log_past_the_checkpoint_are_cut(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), "loss", 10))
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 12}\n{"kind": "st')
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_resuming_with_other_threads_is_said(straight: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, replace(CONFIG, epochs=1))
        run(tmp_path, replace(CONFIG, epochs=2), resume=True)
    torch.set_num_threads(2)
    try:
        with pytest.warns(
            ResumedElsewhere, match=r"written with 1 thread .* resumed with 2 threads .* not bit for bit"
        ):
            result = run(tmp_path, resume=True)
    finally:
        torch.set_num_threads(1)
    assert result.epochs_run == 3
