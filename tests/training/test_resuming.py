"""A training that is interrupted goes on bit for bit."""

from __future__ import annotations

import itertools
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.training import ResumedElsewhere
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


def press_ctrl_c(model: Any, method: str, call: int) -> Any:
    """The model, or optimizer, at whose ``call``-th call of ``method`` Ctrl-C is pressed."""
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
        *(("loss", step) for step in (1, 5, 7, STEPS)),  # before any step, within an epoch, at its start and end
        ("encode_captions", 7),  # in the first validation
        ("score", 14),  # in the second
    ],
)
def test_an_interrupted_training_goes_on_bit_for_bit(straight: Path, tmp_path: Path, method: str, call: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), method, call))
    if (method, call) == ("loss", 5):  # no step is lost
        assert checkpoint_tensors(tmp_path)["optimizer.step.image.fc.bias"].item() == 4
    with open(tmp_path / "log.jsonl", "a") as file:  # what a kill may leave there
        file.write('{"kind": "step", "step": 12}\n{"kind": "st')
    torch.manual_seed(1)  # neither the weights nor the generators that are there on resuming matter
    result = run(tmp_path, model=DroppingScan(make_model().config), resume=True)
    assert result.epochs_run == 3
    assert_same_training(tmp_path, straight)


@pytest.mark.parametrize("call", [4, 6])
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


def test_a_finished_training_resumes_to_its_result(straight: Path) -> None:
    before = everything(straight)
    result = run(straight, resume=True)
    assert str(everything(straight)) == str(before)
    epochs = [line for line in before[1] if line["kind"] == "epoch"]
    assert result.best_rsum == result.metrics.rsum == max(line["rsum"] for line in epochs)


def test_epochs_can_be_added_and_other_threads_are_said(tmp_path: Path, straight: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path / "same", replace(CONFIG, epochs=1))
        run(tmp_path / "same", resume=True)
        assert_same_training(tmp_path / "same", straight)
        run(tmp_path, replace(CONFIG, epochs=1, encode_chunk=2))
    torch.set_num_threads(2)
    try:
        with pytest.warns(ResumedElsewhere, match=r"with 1 thread .* resumed with 2 threads .* not bit for bit"):
            run(tmp_path, replace(CONFIG, epochs=1), resume=True)
    finally:
        torch.set_num_threads(1)
