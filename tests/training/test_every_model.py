"""Every model learns, is measured, is saved and goes on after an interruption through the protocol alone."""

from __future__ import annotations

import dataclasses
import itertools
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.evaluation import encode_dataset, metrics_from_ranks, retrieval_metrics, score_matrix
from crossret.hyperparameters.config import LARGEST_NUMBER, SMALLEST_POSITIVE
from crossret.models import MODELS
from crossret.training import TrainingConfig, load_model, save_model
from tests.training.toy import CONFIG, IMAGE_DIM, TRAIN, ToyCorpus, assert_same_training, checkpoint_tensors, run

CORPUS, DEV, TEST = ToyCorpus(200), ToyCorpus(40, seed=1), ToyCorpus(50, seed=2)
SHORT = TrainingConfig(epochs=4, decay_epochs=(3,), batch_size=32, learning_rate=1e-2)


@dataclass(frozen=True)
class Small:
    """A model that learns the toy corpus in seconds, and one whose resumption needs all that a checkpoint can hold.

    Attributes:
        fields: of both models' hyper-parameters.
        changed: of the second one's: dropout, stages, further parts.
        learning, resuming: how they are trained.
    """

    fields: dict[str, Any]
    changed: dict[str, Any]
    learning: TrainingConfig = SHORT
    resuming: TrainingConfig = CONFIG


ADADELTA = replace(CONFIG, optimizer="adadelta", learning_rate=1.0, weight_decay=5e-4, gradient_norm=0.1)
SMALL = {
    "scan": Small(
        {}, {"cross_attention": "ensemble", "i2t_pooling": "lse"}, replace(SHORT, epochs=10, decay_epochs=(8,))
    ),
    "sman": Small({"dropout": 0.0}, {"dropout": 0.3}, resuming=ADADELTA),
    "han": Small({"heads": 2}, {"clusters": 3}, resuming=replace(CONFIG, weight_decay=1e-2)),
    "mhsan": Small(
        {"feature_dim": 32, "attention_dim": 16, "heads": 4, "dropout": 0.0, "text_layers": 2, "text_dropout": 0.0},
        {"dropout": 0.5, "text_dropout": 0.25, "text_from_epoch": 1, "image_from_epoch": 2},
        resuming=replace(CONFIG, decay_epochs=(1, 2)),
    ),
    "oan": Small({"heads": 3}, {"text_encoder": "lstm"}, resuming=replace(ADADELTA, decay_epochs=())),
    "vse": Small({}, {"measure": "order", "use_abs": True, "text_layers": 2}),
}
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)


def make(kind: str, seed: int = 0, **fields: Any) -> Any:
    config_class, model_class = MODELS[kind]
    torch.manual_seed(seed)
    sizes = {"image_dim": IMAGE_DIM, "vocabulary_size": len(TRAIN.vocabulary), "embed_dim": 32, "word_dim": 16}
    return model_class(config_class(**{**sizes, "negatives": "sum", **SMALL[kind].fields, **fields}))


def resumable(kind: str, seed: int = 0) -> Any:
    return make(kind, seed, **SMALL[kind].changed)


@EVERY_MODEL
@pytest.mark.parametrize("value", [SMALLEST_POSITIVE, LARGEST_NUMBER])
def test_numbers_at_the_ends_of_their_range_train(tmp_path: Path, kind: str, value: float) -> None:
    config = make(kind, pooling="lse").config if kind == "scan" else make(kind).config
    for field in dataclasses.fields(config):
        if isinstance(getattr(config, field.name), float):
            with suppress(ValueError):  # a share is at most 1, the order of a softmax at least 1
                config = replace(config, **{field.name: value})
    numbers = {"gradient_norm": value, "weight_decay": value}
    run(tmp_path, replace(CONFIG, epochs=1, **numbers), model=MODELS[kind][1](config))


@pytest.fixture(scope="module", params=MODELS)
def learnt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp(request.param)
    run(out_dir, SMALL[request.param].learning, model=make(request.param), train_data=CORPUS, dev_data=DEV)
    return out_dir


def test_it_learns_to_match(learnt: Path) -> None:
    model, _ = load_model(learnt / "best")
    metrics = retrieval_metrics(score_matrix(model, *encode_dataset(model, TEST)), TEST.image_of_caption)
    assert min(metrics.i2t.r1, metrics.t2i.r1) >= 60  # by chance 4 and 2


def test_its_figures_are_those_of_its_ranks(learnt: Path) -> None:
    model, _ = load_model(learnt / "best")
    images, captions = encode_dataset(model, TEST)
    scores = score_matrix(model, images, captions)
    matches = TEST.image_of_caption == np.arange(TEST.n_images)[:, None]
    i2t = [int(matches[row][order].argmax()) for row, order in enumerate((-scores).argsort(1, kind="stable"))]
    t2i = [int(matches.T[row][order].argmax()) for row, order in enumerate((-scores.T).argsort(1, kind="stable"))]
    ranked = metrics_from_ranks(np.array(i2t), np.array(t2i))
    assert ranked == retrieval_metrics(scores, TEST.image_of_caption)
    pairs = torch.from_numpy(np.argwhere(np.ones_like(scores)))
    with torch.inference_mode():
        listed = model.score(images, captions, pairs=pairs).reshape(scores.shape)
    np.testing.assert_allclose(listed, scores, rtol=1e-4, atol=1e-5)


def test_it_is_saved_and_loaded(learnt: Path, tmp_path: Path) -> None:
    model, vocabulary = load_model(learnt / "best")
    save_model(model, tmp_path, vocabulary)
    again, _ = load_model(tmp_path)
    assert again.config == model.config
    scores, expected = (score_matrix(one, *encode_dataset(one, DEV)) for one in (again, model))
    np.testing.assert_array_equal(scores, expected)


@EVERY_MODEL
def test_it_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    config = SMALL[kind].resuming
    run(tmp_path / "straight", config, model=resumable(kind))
    # In the first epoch, at the end of the second, in the last: with stages, before and behind their boundaries.
    for seed, call in ((0, 4), (1, 9), (2, 3)):
        model = resumable(kind, seed)
        loss, calls = model.loss, itertools.count(1)

        def pressed(*arguments: Any, loss: Any = loss, calls: Any = calls, call: int = call) -> Any:
            if next(calls) == call:
                signal.raise_signal(signal.SIGINT)
            return loss(*arguments)

        model.loss = pressed
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "resumed", config, model=model, resume=seed > 0)
    run(tmp_path / "resumed", config, model=resumable(kind, 3), resume=True)
    assert_same_training(tmp_path / "resumed", tmp_path / "straight")


@EVERY_MODEL
def test_every_parameter_is_trained(kind: str, tmp_path: Path) -> None:
    model = resumable(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    run(tmp_path, SMALL[kind].resuming, model=model)
    steps = {name for name in checkpoint_tensors(tmp_path) if name.startswith("optimizer.step.")}
    assert steps == {f"optimizer.step.{name}" for name in before}
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad, name
        assert not torch.equal(parameter, before[name]), name
