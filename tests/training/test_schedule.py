"""What options of a training do: accumulation, early end, bfloat16, the best epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.evaluation import DirectionMetrics, RetrievalMetrics
from crossret.models import Scan
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, TRAIN, Gradients, assert_same_training, everything, make_model, run

ACCUMULATED = replace(CONFIG, accumulate=4, log_every=1, checkpoint_every=1)  # 6 batches: a step of four, one of two


def test_a_step_takes_the_sum_of_its_batches_gradients(tmp_path: Path) -> None:
    gradients, sums = Gradients(), []
    still = replace(ACCUMULATED, epochs=1, gradient_norm=1e9, learning_rate=1e-30)
    run(tmp_path, still, callbacks=[gradients])
    expected = make_model()
    torch.manual_seed(CONFIG.seed)
    for number, batch in enumerate(TRAIN.training_batches(CONFIG.batch_size, seed=CONFIG.seed, epoch=0)):
        if number % 4 == 0:
            expected.zero_grad()
        images, captions = expected.encode_images(batch.regions), expected.encode_captions(batch.tokens, batch.lengths)
        expected.loss(images, captions, batch.image_ids)["loss"].backward()
        if number in (3, 5):
            sums.append({name: parameter.grad.clone() for name, parameter in expected.named_parameters()})
    torch.testing.assert_close(gradients.taken, sums)
    _, lines, _ = everything(tmp_path)
    assert [(line["kind"], line["step"]) for line in lines] == [("step", 1), ("step", 2), ("epoch", 2)]
    assert lines[2]["loss"] == pytest.approx((lines[0]["loss"] + lines[1]["loss"]) / 2)


def test_an_interruption_within_a_step_takes_it_anew(tmp_path: Path) -> None:
    run(tmp_path / "straight", ACCUMULATED)
    for call in (2, 6):  # of the first step, and of the second, of which four batches were taken before
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / f"{call}", ACCUMULATED, model=press_ctrl_c(make_model(), "loss", call))
        run(tmp_path / f"{call}", ACCUMULATED, resume=True)
        assert_same_training(tmp_path / "straight", tmp_path / f"{call}")


def test_it_ends_where_no_epoch_is_better(tmp_path: Path) -> None:
    still = replace(CONFIG, epochs=9, decay_epochs=(), learning_rate=1e-30, patience=2)
    result = run(tmp_path, still)
    assert (result.best_epoch, result.epochs_run, result.ended_early) == (1, 3, True)
    assert run(tmp_path, still, resume=True).epochs_run == 3
    result = run(tmp_path, replace(still, patience=3), resume=True)
    assert (result.epochs_run, result.ended_early) == (4, True)
    result = run(tmp_path, replace(still, epochs=5, patience=None), resume=True)
    assert (result.epochs_run, result.ended_early) == (5, False)


def test_amp_computes_in_bfloat16_and_keeps_weights_in_float32(tmp_path: Path) -> None:
    run(tmp_path / "float32", replace(CONFIG, epochs=1, log_every=1))
    model, seen = make_model(), set()
    fc = model.image.fc
    fc.register_forward_hook(lambda module, inputs, output: seen.add((output.dtype, module.training)))
    run(tmp_path / "bfloat16", replace(CONFIG, epochs=1, log_every=1, amp=True), model=model)
    assert seen == {(torch.bfloat16, True), (torch.float32, False)}  # validation is as `evaluate` measures
    tensors, lines, best = everything(tmp_path / "bfloat16")
    assert all(tensor.dtype == torch.float32 for name, tensor in tensors.items() if name.startswith("model."))
    assert all(tensor.dtype == torch.float32 for tensor in best.values())
    _, exact, _ = everything(tmp_path / "float32")
    for line, other in zip(lines, exact, strict=True):
        if line["kind"] == "step":
            assert line["loss"] != other["loss"]
            assert line["loss"] == pytest.approx(other["loss"], rel=0.05)


@pytest.mark.parametrize(("select_by", "best"), [("rsum", (3, 330.0)), ("r1", (2, 230.0))])
def test_what_makes_an_epoch_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select_by: Any, best: tuple[int, float]
) -> None:
    # By epoch: R@1 of sentence and of image retrieval, and R@5 and R@10 of both.
    measured = {1: (40.0, 10.0, 20.0), 2: (30.0, 40.0, 40.0), 3: (60.0, 9.0, 65.25), 4: (10.0, 60.0, 10.0)}

    def metrics(*_: object) -> RetrievalMetrics:
        i2t, t2i, others = measured[next(epochs)]
        return RetrievalMetrics(
            DirectionMetrics(i2t, others, others, 1.0, 1.0), DirectionMetrics(t2i, others, others, 1.0, 1.0)
        )

    monkeypatch.setattr("crossret.training.validation.retrieval_metrics", metrics)
    config = replace(CONFIG, epochs=4, select_by=select_by, patience=2)
    epochs = iter(range(1, 5))
    result = run(tmp_path, replace(config, epochs=3))
    assert (result.best_epoch, result.best_rsum) == best
    result = run(tmp_path, config, resume=True)  # which knows the best epoch's R@1, and waits anew from there
    assert (result.best_epoch, result.best_rsum, result.epochs_run) == (*best, 4)
    _, lines, _ = everything(tmp_path)
    bests = [line["epoch"] for line in lines if line["kind"] == "epoch" and line["best"]]
    assert bests == ([1, 2, 3] if select_by == "rsum" else [1, 2])


@pytest.mark.parametrize("same_image_negatives", [False, True])
def test_captions_of_one_image_are_negatives_where_that_is_asked_for(
    tmp_path: Path, same_image_negatives: bool
) -> None:
    model = Scan(make_model(negatives="sum").config)
    run(
        tmp_path,
        replace(CONFIG, epochs=1, log_every=1, learning_rate=1e-30, same_image_negatives=same_image_negatives),
        model=model,
    )
    losses, differ = [], []
    for batch in TRAIN.training_batches(CONFIG.batch_size, seed=CONFIG.seed, epoch=0):
        with torch.no_grad():
            images = model.encode_images(batch.regions)
            captions = model.encode_captions(batch.tokens, batch.lengths)
            with_ids, without = (model.loss(images, captions, ids)["loss"].item() for ids in (batch.image_ids, None))
        differ.append(with_ids != without)
        losses.append(without if same_image_negatives else with_ids)
    assert any(differ)
    _, lines, _ = everything(tmp_path)
    assert [line["loss"] for line in lines if line["kind"] == "step"] == pytest.approx(losses)
