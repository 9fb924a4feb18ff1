"""The files of a training: the same from the same training, of one process at a time, and damaged ones are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossret.files.locks import LOCK
from crossret.files.tensors import read_header, write_tensors
from crossret.training import Callback
from crossret.training.callbacks import Csv, Curves
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, SpoiltCorpus, checkpoint_tensors, make_model, run


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_the_same_training_writes_the_same_bytes_interrupted_or_not(tmp_path: Path) -> None:
    more: dict[str, Any] = {"config": replace(CONFIG, epochs=2), "callbacks": [Csv(), Curves()]}
    for name in ("here", "there"):
        run(tmp_path / name, **more)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", model=press_ctrl_c(make_model(), "loss", 10), **more)
    run(tmp_path / "resumed", resume=True, **more)
    here = contents(tmp_path / "here")
    best = {f"best/{name}" for name in ("config.json", "model.safetensors", "vocabulary.json")}
    assert here.keys() == best | {"checkpoint.safetensors", "curves.png", "epochs.csv", "log.jsonl", "steps.csv"}
    assert here == contents(tmp_path / "there")
    assert here == contents(tmp_path / "resumed")


def test_two_processes_do_not_train_in_one_directory(tmp_path: Path) -> None:
    class Second(Callback):
        def on_start(self, start: object) -> None:
            with pytest.raises(BlockingIOError, match=r"in use by process \d+ on .*; wait for it or choose another"):
                run(tmp_path)

    run(tmp_path, replace(CONFIG, epochs=1), callbacks=[Second()])
    run(tmp_path, resume=True)  # free again


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[", "line 1: not JSON"),
        ('{"kind": []}', r"line 1: not a line of a training's log: its kind is \[\]"),
        ('{"kind": "step", "step": 1}', "line 1: not a line of a training's log: its epoch is None"),
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


def test_a_state_that_no_generator_has_is_named(straight: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes((straight / "log.jsonl").read_bytes())
    path = straight / "checkpoint.safetensors"
    tensors = checkpoint_tensors(straight)
    tensors["random.cpu"].zero_()
    write_tensors(tmp_path / path.name, tensors, read_header(path)[1])
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: tensor 'random.cpu' is no state of a generator"):
        run(tmp_path, resume=True)


def test_a_loss_that_is_not_a_number_names_its_step_and_image(tmp_path: Path) -> None:
    order = np.random.default_rng([CONFIG.seed, 0]).permutation(44)
    step = 1 + min(int(np.flatnonzero(order == caption)[0]) for caption in (22, 23)) // CONFIG.batch_size
    said = rf"is nan at step {step} \(epoch 1\): the features of training image 11 are not finite"
    with pytest.raises(ValueError, match=said):
        run(tmp_path, train_data=SpoiltCorpus(22))
    tensors = checkpoint_tensors(tmp_path)
    assert all(tensor.isfinite().all() for name, tensor in tensors.items() if name.startswith("model."))
