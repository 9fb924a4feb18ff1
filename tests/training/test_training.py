"""A training learns, keeps its best model and says how it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.files.json import read_json_lines
from crossret.training import Callback, load_model
from crossret.training.callbacks import Start, Step
from tests.training.toy import CONFIG, DEV, TRAIN, Gradients, everything, make_model, run


def test_the_log_has_a_line_an_interval_and_a_line_an_epoch(straight: Path) -> None:
    _, lines, _ = everything(straight)
    steps = [line for line in lines if line["kind"] == "step"]
    assert [(line["epoch"], line["step"]) for line in steps] == [(1, 4), (2, 8), (2, 12), (3, 16)]
    assert [line["learning_rate"] for line in steps] == [1e-2, 1e-2, 1e-2, 1e-3]
    assert all(line["loss"] > 0 and line["gradient_norm"] > 0 for line in steps)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["epoch"], line["step"]) for line in epochs] == [(1, 6), (2, 12), (3, 18)]


def test_the_best_model_is_that_of_the_highest_rsum(straight: Path, tmp_path: Path) -> None:
    class Forgetting(Callback):
        def on_start(self, start: Start) -> None:
            self.model = start.model

        def on_step(self, step: Step) -> None:
            if step.epoch == 3:
                for parameter in self.model.parameters():
                    parameter.data.zero_()

    result = run(tmp_path, CONFIG, callbacks=[Forgetting()])
    _, lines, _ = everything(tmp_path)
    sums = [line["rsum"] for line in lines if line["kind"] == "epoch"]
    assert result.best_rsum == max(sums)
    assert result.best_epoch == sums.index(max(sums)) + 1 < len(sums)
    for out_dir, best in ((tmp_path, max(sums)), (straight, run(straight, resume=True).best_rsum)):
        model, vocabulary = load_model(out_dir / "best")
        assert vocabulary.word2idx == TRAIN.vocabulary.word2idx
        metrics = retrieval_metrics(score_matrix(model, *encode_dataset(model, DEV)), DEV.image_of_caption)
        assert metrics.rsum == best


@pytest.mark.parametrize("limit", [0.5, None])
def test_gradients_are_clipped(tmp_path: Path, limit: float | None) -> None:
    gradients = Gradients()
    run(tmp_path, replace(CONFIG, epochs=1, gradient_norm=limit, log_every=1), callbacks=[gradients])
    logged = [line["gradient_norm"] for line in read_json_lines(tmp_path / "log.jsonl") if line["kind"] == "step"]
    assert min(logged) > 0.5
    assert gradients.norms() == pytest.approx([0.5] * 6 if limit == 0.5 else logged, rel=1e-3)


def test_the_caller_s_random_numbers_are_not_touched(tmp_path: Path) -> None:
    model = make_model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tmp_path, replace(CONFIG, epochs=1), model=model)
    assert torch.equal(torch.rand(3), expected)
