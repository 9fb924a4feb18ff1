"""Training of any model that scores images with captions: validation every epoch, interruption and resumption."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from crossret.data.batches import Batch
from crossret.data.corpus import Corpus
from crossret.evaluation import RetrievalMetrics, encode_dataset, retrieval_metrics, score_matrix
from crossret.hyperparameters import TrainingConfig
from crossret.models.checkpoints import check_vocabulary, describe_model, digest, save_model
from crossret.models.protocol import Matcher
from crossret.training.log import TrainingLog
from crossret.training.progress import TrainingProgress
from crossret.training.state import (
    Machine,
    Optimizer,
    Position,
    load_state,
    random_state,
    save_state,
    set_random_state,
)

CHECKPOINT, LOG, BEST = "checkpoint.safetensors", "log.jsonl", "best"
_MAY_CHANGE = ("epochs", "log_every", "checkpoint_every")  # on resuming


class ResumedElsewhere(UserWarning):
    """A training goes on with other threads or instructions than before, so that the last bits may differ."""


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training achieved.

    Attributes:
        best_rsum: the highest rsum on the development set.
        best_epoch: its epoch, from 1.
        epochs_run: epochs finished, those before an interruption included.
        metrics: retrieval on the development set in the best epoch.
        out_dir: where the files are; the best epoch's model is in ``out_dir / "best"``.
    """

    best_rsum: float
    best_epoch: int
    epochs_run: int
    metrics: RetrievalMetrics
    out_dir: Path


def train(
    model: Matcher,
    train_data: Corpus,
    dev_data: Corpus,
    config: TrainingConfig,
    out_dir: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
) -> TrainingResult:
    """Train ``model`` on whatever device it is.

    Writes into ``out_dir``, which is made if needed: ``checkpoint.safetensors``, from which training resumes, bit for
    bit with as many threads and the same CPU instructions as before (with others there is a ``ResumedElsewhere``
    warning); ``best/``, the model of the epoch with the highest rsum on ``dev_data`` (see ``load_model``);
    ``log.jsonl``, one object every ``log_every`` steps and one an epoch. An interruption (Ctrl-C) writes a checkpoint
    and goes on as KeyboardInterrupt.

    A parameter that the model does not train in an epoch (``Matcher.trains``), or that requires no gradient when the
    training starts, keeps its value: it has no gradient, no share in the gradient's norm and no weight decay. In the
    end, however it comes, all require a gradient that did before.

    Args:
        model: a freshly made model; on resuming its weights are replaced by the checkpoint's.
        train_data, dev_data: images and captions, of the same vocabulary.
        config: how to train. On resuming, epochs, log_every and checkpoint_every may differ from before.
        resume: go on from the checkpoint in ``out_dir``; a finished training returns at once.
        progress: show progress on the terminal (standard error).

    Raises:
        FileExistsError: ``out_dir`` has a checkpoint and ``resume`` is False.
        FileNotFoundError: it has none and ``resume`` is True.
        ValueError: model and data do not fit each other, the checkpoint is malformed or of another training, or the
            loss or its gradient is not finite (the message names the step, and the last checkpoint stands).
    """
    check_vocabulary(model, train_data.vocabulary)
    if digest(dev_data.vocabulary) != digest(train_data.vocabulary):
        raise ValueError("dev_data: its vocabulary is not that of train_data")
    for name, data in {"train_data": train_data, "dev_data": dev_data}.items():
        if data.image_dim != model.config.image_dim:
            raise ValueError(f"{name}: image_dim is {data.image_dim}, but the model's is {model.config.image_dim}")
    device = next(model.parameters()).device
    # The caller's generators are as before when training ends, and training does not depend on them.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run = _Run(model, train_data, dev_data, config, Path(out_dir), resume)
        done = run.position.epoch * run.batches + run.position.batch
        with TrainingProgress(config.epochs, run.batches, done, enabled=progress) as show:
            try:
                run.run(show)
            except KeyboardInterrupt:
                run.save()
                raise
            finally:
                run.close()
    position = run.position
    metrics = RetrievalMetrics.from_dict(position.best)
    return TrainingResult(metrics.rsum, position.best_epoch, position.epoch, metrics, Path(out_dir))


class _Run:
    """One training: its state, and the steps that advance it.

    ``position``, the weights, the optimizer's state and ``random`` change together, inside ``_uninterrupted`` blocks:
    whenever a KeyboardInterrupt can arrive, they are the state after a whole step, and ``save`` may write them.
    """

    def __init__(
        self, model: Matcher, train_data: Corpus, dev_data: Corpus, config: TrainingConfig, out_dir: Path, resume: bool
    ) -> None:
        self.model = model
        self.train_data = train_data
        self.dev_data = dev_data
        self.config = config
        self.out_dir = out_dir
        self.device = next(model.parameters()).device
        self.parameters = dict(model.named_parameters())
        self.trainable = {name for name, parameter in self.parameters.items() if parameter.requires_grad}
        self.optimizer = self._optimizer()
        self.identity = self._identity()
        self.batches = math.ceil(train_data.n_captions / config.batch_size)
        torch.manual_seed(config.seed)
        self.random = random_state(self.device)
        self.position = Position()
        checkpoint = out_dir / CHECKPOINT
        if resume:
            self.position, self.random, machine = load_state(
                checkpoint, model, self.optimizer, self.random, self.identity, self.batches
            )
            if machine != Machine.this():
                warnings.warn(
                    f"{checkpoint}: written with {machine}, resumed with {Machine.this()}: "
                    "the training goes on, but not bit for bit",
                    ResumedElsewhere,
                    stacklevel=3,
                )
            set_random_state(self.random, self.device)
        elif checkpoint.exists():
            raise FileExistsError(f"{checkpoint}: there is a training already; resume it or choose another directory")
        else:
            out_dir.mkdir(parents=True, exist_ok=True)
        self.log = TrainingLog(out_dir / LOG, self.position.log_bytes)
        self.clock = _Clock()
        if not resume:
            self.save()

    def run(self, show: TrainingProgress) -> None:
        """Go on until all epochs are done."""
        while self.position.epoch < self.config.epochs:
            self._train_epoch(show)
            self._validate(show)

    def save(self) -> None:
        """Write the checkpoint."""
        self.log.sync()
        checkpoint = self.out_dir / CHECKPOINT
        save_state(checkpoint, self.model, self.optimizer, self.random, self.position, self.identity)

    def close(self) -> None:
        """Leave the log whole, and the parameters as trainable as they were."""
        self.log.close()
        for name in self.trainable:
            self.parameters[name].requires_grad_(True)

    def _optimizer(self) -> Optimizer:
        config, parameters = self.config, list(self.parameters.values())
        if config.optimizer == "adadelta":
            return torch.optim.Adadelta(parameters, lr=config.learning_rate, rho=0.9, weight_decay=config.weight_decay)
        fused = self.device.type in ("cpu", "cuda")
        return torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)

    def _identity(self) -> dict[str, Any]:
        """What must not change between a checkpoint and its resumption."""
        schedule = json.loads(self.config.to_json())
        return {
            "model": describe_model(self.model),
            "vocabulary": digest(self.train_data.vocabulary),
            "training images": self.train_data.n_images,
            "training captions": self.train_data.n_captions,
            "training data": self.train_data.fingerprint(),
            "development data": self.dev_data.fingerprint(),
            **{name: value for name, value in schedule.items() if name not in _MAY_CHANGE},
        }

    def _train_epoch(self, show: TrainingProgress) -> None:
        position, config = self.position, self.config
        rate = config.learning_rate_of(position.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for name in self.trainable:
            self.parameters[name].requires_grad_(self.model.trains(name, position.epoch))
        self.model.train()
        self.clock.start()
        batches = self.train_data.training_batches(
            config.batch_size, seed=config.seed, epoch=position.epoch, start=position.batch
        )
        for batch in batches:
            values = self._step(batch, rate)
            show.step(position.epoch + 1, position.batch, values["loss"], self.clock.rate)
            if position.step % config.checkpoint_every == 0:
                self.save()

    def _step(self, batch: Batch, rate: float) -> dict[str, float]:
        position = self.position
        boxes = None if batch.boxes is None else batch.boxes.to(self.device)
        images = self.model.encode_images(batch.regions.to(self.device), boxes=boxes)
        captions = self.model.encode_captions(batch.tokens.to(self.device), batch.lengths.to(self.device))
        terms = self.model.loss(images, captions, batch.image_ids.to(self.device))
        values = {name: term.item() for name, term in terms.items()}
        self._check_finite("loss", values["loss"])
        self.optimizer.zero_grad()
        torch.autograd.backward(terms["loss"])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.gradient_norm).item()
        self._check_finite("gradient's norm", norm)
        with _uninterrupted():
            self.optimizer.step()
            position.batch += 1
            position.step += 1
            position.epoch_loss += values["loss"]
            position.summed += 1
            for name, value in values.items():
                position.sums[name] = position.sums.get(name, 0.0) + value
            self.clock.count(len(batch))
            if position.step % self.config.log_every == 0:
                self._log_step(rate, norm)
            self.random = random_state(self.device)
        return values

    def _check_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            position = self.position
            raise ValueError(
                f"the {name} is {value} at step {position.step + 1} (epoch {position.epoch + 1}): "
                "the features are not finite, or the learning rate is too high"
            )

    def _log_step(self, rate: float, norm: float) -> None:
        position = self.position
        self.log.write(
            kind="step",
            epoch=position.epoch + 1,
            step=position.step,
            **{name: total / position.summed for name, total in position.sums.items()},
            learning_rate=rate,
            gradient_norm=norm,
            captions_per_second=round(self.clock.rate, 1),
        )
        position.log_bytes = self.log.length
        position.sums, position.summed = {}, 0
        self.clock.start()

    def _validate(self, show: TrainingProgress) -> None:
        position = self.position
        show.validating(position.epoch + 1)
        images, captions = encode_dataset(self.model, self.dev_data, batch_size=self.config.batch_size)
        metrics = retrieval_metrics(score_matrix(self.model, images, captions), self.dev_data.image_of_caption)
        best = position.best_epoch == 0 or metrics.rsum > position.best["rsum"]
        with _uninterrupted():
            if best:
                save_model(self.model, self.out_dir / BEST, self.train_data.vocabulary)
            position.epoch += 1
            loss = position.epoch_loss / self.batches
            self.log.write(
                kind="epoch", epoch=position.epoch, step=position.step, loss=loss, best=best, **metrics.as_dict()
            )
            position.log_bytes = self.log.length
            position.batch, position.epoch_loss = 0, 0.0
            if best:
                position.best_epoch, position.best = position.epoch, metrics.as_dict()
            self.save()
        show.epoch(position.epoch, loss, metrics, best)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until the end of the block. Signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    received = False

    def remember(*_: object) -> None:
        nonlocal received
        received = True

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


class _Clock:
    """Captions a second since the last start."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._began = time.monotonic()
        self._captions = 0

    def count(self, captions: int) -> None:
        self._captions += captions

    @property
    def rate(self) -> float:
        return self._captions / max(time.monotonic() - self._began, 1e-9)
