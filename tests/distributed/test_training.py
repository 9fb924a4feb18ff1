"""A training on several ranks is that of one process; it ends where one is lost, and goes on with any number."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.distributed import ALONE, Group, RankLost
from crossret.files.json import read_json_lines
from crossret.models import Scan, Sman, SmanConfig
from crossret.training import Callback, ResumedElsewhere
from tests.distributed.ranks import on_ranks
from tests.training import toy
from tests.training.toy import CONFIG, DroppingScan, assert_same_training, checkpoint_tensors, everything, make_model

pytestmark = pytest.mark.usefixtures("one_thread")

# Seven batches of six captions and one of two: of three ranks one has none of it. Steps are small and smooth, as Adam
# makes much of a rounding.
SMOOTH = replace(CONFIG, batch_size=6, learning_rate=1e-4, log_every=1)


def plain(**fields: Any) -> Scan:
    """Without dropout, which ranks draw apart."""
    return Scan(make_model(negatives="sum", **fields).config)


def run(directory: Path, model: Scan, **options: Any) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(Group.current().rank)  # the first rank's weights count
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    result = toy.run(directory, **{"config": SMOOTH, **options}, model=model)
    return result.best_rsum, dict(model.state_dict())


def run_in_chunks(directory: Path) -> tuple[float, dict[str, Tensor]]:
    return run(directory, plain(), config=replace(SMOOTH, encode_chunk=1))


def run_in_bfloat16(directory: Path, chunk: int | None) -> list[float]:
    """The losses of a model whose words come in another dtype where all captions are of one length."""
    torch.manual_seed(0)
    model = Sman(SmanConfig(toy.IMAGE_DIM, len(toy.TRAIN.vocabulary), embed_dim=12, word_dim=6, dropout=0.0))
    toy.run(directory, replace(SMOOTH, epochs=1, amp=True, encode_chunk=chunk), model=model)
    return [line["loss"] for line in read_json_lines(directory / "log.jsonl")]


def assert_nearly_the_same(found: Path, expected: Path) -> None:
    (tensors, log, best), (expected_tensors, expected_log, expected_best) = everything(found), everything(expected)
    for line, other in zip(log, expected_log, strict=True):
        assert line.pop("kind") == other.pop("kind")
        assert line == pytest.approx(other, rel=1e-4)
    for weights, others in ((tensors, expected_tensors), (best, expected_best)):
        assert weights.keys() == others.keys()
        for name, tensor in weights.items():
            if name != "random.cpu":
                torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("alone")
    run(directory, plain())
    return directory


def test_a_training_on_three_ranks_in_chunks_is_that_of_one_process(alone: Path, tmp_path: Path) -> None:
    by_rank = on_ranks(3, run_in_chunks, tmp_path)
    assert_nearly_the_same(tmp_path, alone)
    for rsum, weights in by_rank[1:]:
        assert rsum == by_rank[0][0]
        assert str(weights) == str(by_rank[0][1])


def test_ranks_and_chunks_agree_on_a_dtype_under_autocast(tmp_path: Path) -> None:
    expected = run_in_bfloat16(tmp_path / "alone", None)
    for of_rank in on_ranks(2, run_in_bfloat16, tmp_path / "ranks", 2):
        assert of_rank == pytest.approx(expected, rel=1e-2)


def fail_at(model: Any, call: int, fail: Any) -> Any:
    """The model, at whose ``call``-th loss this happens."""
    original, calls = model.loss, itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(calls) == call:
            fail()
        return original(*arguments)

    model.loss = wrapped
    return model


def until_lost(directory: Path, model: Scan, call: int, seconds: float | None) -> str:
    """Train until rank 1 is killed at its ``call``-th loss, or does not answer for ``seconds``."""
    if Group.current().rank == 1:
        fail_at(model, call, lambda: time.sleep(seconds) if seconds else os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RankLost) as raised:
        run(directory, model)
    return str(raised.value)


def test_a_training_that_lost_a_rank_goes_on_with_fewer_or_more(alone: Path, tmp_path: Path) -> None:
    (message,) = on_ranks(2, until_lost, tmp_path, plain(), 10, None, killed=1)
    assert "rank 0 of 2" in message
    assert "another rank has ended or does not answer" in message
    assert checkpoint_tensors(tmp_path)["optimizer.step.image.fc.bias"].item() == 9  # nine steps were whole
    with pytest.warns(
        ResumedElsewhere, match=r"on each of 2 ranks, resumed with 1 thread \([^)]*\): the training goes on"
    ):
        run(tmp_path, plain(), config=replace(SMOOTH, epochs=2), resume=True)
    on_ranks(3, resumed, tmp_path)
    assert_nearly_the_same(tmp_path, alone)


def resumed(directory: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        run(directory, plain(), resume=True)
    assert len(warned) == (1 if Group.current().is_first else 0)


def test_a_rank_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    first, second = on_ranks(2, until_lost, tmp_path, plain(), 3, 4.0, seconds=1.0)
    assert "Timed out" in first
    assert "rank 1 of 2" in second


class Counted(Callback):
    calls = 0

    def on_step(self, step: object) -> None:
        self.calls += 1


def drawn_by_ranks(directory: Path) -> tuple[list[bytes], int]:
    """With dropout: a training, and the same one that ends after an epoch and is resumed; what a rank draws from, and
    the steps that it tells callbacks."""
    states: list[bytes] = []
    counted = Counted()
    model = make_model()
    encode = model.encode_images

    def noting(*given: Any, **named: Any) -> Any:
        if model.training:
            states.append(torch.get_rng_state().numpy().tobytes())
        return encode(*given, **named)

    model.encode_images = noting
    toy.run(directory / "whole", replace(CONFIG, epochs=2), model=model, callbacks=[counted])
    toy.run(directory / "stopped", replace(CONFIG, epochs=1))
    toy.run(directory / "stopped", replace(CONFIG, epochs=2), model=DroppingScan(make_model().config), resume=True)
    return states, counted.calls


def test_a_training_resumed_on_as_many_ranks_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    (first, told), (second, untold) = on_ranks(2, drawn_by_ranks, tmp_path)
    assert (told, untold) == (12, 0)
    assert_same_training(tmp_path / "stopped", tmp_path / "whole")
    assert len(first) == len(second)
    assert not set(first) & set(second)  # each rank draws numbers of its own


def stop() -> None:
    raise ValueError("stop")


def refused(directory: Path) -> None:
    """Mistakes that one rank alone can see, of which all say the same."""
    group = Group.current()
    rank = group.rank
    toy.run(directory, replace(CONFIG, epochs=1))
    group.values(None)  # the first rank has written, and unlocked, all that is copied
    if rank:
        shutil.copytree(directory, directory / "resumed1", ignore=shutil.ignore_patterns("resumed0"))
    else:
        with pytest.raises(ValueError, match="stop"):
            toy.run(directory / "resumed0", model=fail_at(make_model(), 2, stop), group=ALONE)
    group.values(None)  # no directory is looked at before it is there
    broken = toy.ToyCorpus(22)
    broken.regions[11, 2, 3] = float("nan")
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"train_data": broken}, "toy: image 11 has features that are not finite"),
        ({"train_data": toy.SpoiltCorpus(22)}, "the features of training image 11 are not finite"),
        ({"dev_data": toy.SpoiltCorpus(22)}, "image 11 has the score nan with caption 0"),
        ({"out_dir": directory}, "there is a training already"),
        ({"config": replace(CONFIG, seed=rank)}, "rank 1 trains with seed = 1, rank 0 with 0"),
        ({"config": replace(CONFIG, epochs=2 + rank)}, "rank 1 trains with epochs = 3, rank 0 with 2"),
        (
            {"config": replace(CONFIG, patience=None if rank else 1)},
            "trains with patience = None, rank 0 with 1",
        ),
        (
            {"resume": True, "out_dir": directory / f"resumed{rank}"},  # on disks of their own
            "rank 1 trains with a checkpoint of step = 6, rank 0 with 0",
        ),
    ]
    for number, (mistake, message) in enumerate(mistakes):
        with pytest.raises((ValueError, FileExistsError), match=message):
            toy.run(**{"out_dir": directory / str(number), **mistake})


def test_all_ranks_say_what_one_has_found(tmp_path: Path) -> None:
    on_ranks(2, refused, tmp_path)
