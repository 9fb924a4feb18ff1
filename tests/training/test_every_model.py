"""Every model learns, and goes on after an interruption, through the protocol alone."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.hyperparameters.config import LARGEST_NUMBER, SMALLEST_POSITIVE
from crossret.models import MODELS
from crossret.training import TrainingConfig, load_model
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, IMAGE_DIM, TRAIN, ToyCorpus, assert_same_training, checkpoint_tensors, run

LEARNING = TrainingConfig(epochs=4, decay_epochs=(3,), batch_size=32, learning_rate=1e-2)
ADADELTA = replace(CONFIG, optimizer="adadelta", learning_rate=1.0, weight_decay=5e-4, gradient_norm=0.1)
# Of each model what makes it small, and what makes its resumption need all that a checkpoint can hold: dropout, stages,
# further parts; and how it is trained then.
SMALL: dict[str, tuple[dict[str, Any], dict[str, Any], TrainingConfig]] = {
    "scan": ({}, {"cross_attention": "ensemble", "i2t_pooling": "lse"}, CONFIG),
    "sman": ({"dropout": 0.0}, {"dropout": 0.3}, ADADELTA),
    "han": ({"heads": 2}, {"clusters": 3}, replace(CONFIG, weight_decay=1e-2)),
    "mhsan": (
        {"feature_dim": 32, "attention_dim": 16, "heads": 4, "dropout": 0.0, "text_layers": 2, "text_dropout": 0.0},
        {"dropout": 0.5, "text_dropout": 0.25, "text_from_epoch": 1, "image_from_epoch": 2},
        replace(CONFIG, decay_epochs=(1, 2)),
    ),
    "oan": ({"heads": 3}, {"text_encoder": "lstm"}, replace(ADADELTA, decay_epochs=())),
    "vse": ({}, {"measure": "order", "use_abs": True, "text_layers": 2}, CONFIG),
    "laps": ({"aggregated": 3}, {"global_token": True}, CONFIG),
}
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)


def make(kind: str, seed: int = 0, **fields: Any) -> Any:
    config_class, model_class = MODELS[kind]
    torch.manual_seed(seed)
    sizes = {"image_dim": IMAGE_DIM, "vocabulary_size": len(TRAIN.vocabulary), "embed_dim": 32, "word_dim": 16}
    return model_class(config_class(**{**sizes, "negatives": "sum", **SMALL[kind][0], **fields}))


@EVERY_MODEL
@pytest.mark.parametrize("value", [SMALLEST_POSITIVE, LARGEST_NUMBER])
def test_numbers_at_the_ends_of_their_range_train(tmp_path: Path, kind: str, value: float) -> None:
    config = make(kind, pooling="lse").config if kind == "scan" else make(kind).config
    for field in dataclasses.fields(config):
        if isinstance(getattr(config, field.name), float):
            with suppress(ValueError):  # a share is at most 1, the order of a softmax at least 1
                config = replace(config, **{field.name: value})
    numbers = {"gradient_norm": value, "weight_decay": value}
    run(tmp_path, replace(CONFIG, epochs=1, batch_size=22, **numbers), model=MODELS[kind][1](config))


@EVERY_MODEL
def test_it_learns_to_match(kind: str, tmp_path: Path) -> None:
    config = replace(LEARNING, epochs=10, decay_epochs=(8,)) if kind == "scan" else LEARNING
    run(tmp_path, config, model=make(kind), train_data=ToyCorpus(200), dev_data=ToyCorpus(40, seed=1))
    model, _ = load_model(tmp_path / "best")
    test = ToyCorpus(50, seed=2)
    metrics = retrieval_metrics(score_matrix(model, *encode_dataset(model, test)), test.image_of_caption)
    assert min(metrics.i2t.r1, metrics.t2i.r1) >= 60  # by chance 4 and 2


@EVERY_MODEL
def test_it_trains_all_that_it_has_and_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    _, changed, config = SMALL[kind]
    model = make(kind, **changed)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    run(tmp_path / "straight", config, model=model)
    steps = {name for name in checkpoint_tensors(tmp_path / "straight") if name.startswith("optimizer.step.")}
    assert steps == {f"optimizer.step.{name}" for name in before}
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad, name
        assert not torch.equal(parameter, before[name]), name
    # In the first epoch, at the end of the second, in the last: with stages, before and behind their boundaries.
    for seed, call in ((0, 4), (1, 9), (2, 3)):
        with pytest.raises(KeyboardInterrupt):
            stopped = press_ctrl_c(make(kind, seed, **changed), "loss", call)
            run(tmp_path / "resumed", config, model=stopped, resume=seed > 0)
    run(tmp_path / "resumed", config, model=make(kind, 3, **changed), resume=True)
    assert_same_training(tmp_path / "resumed", tmp_path / "straight")
