"""Training of any model that scores images with captions: validation every epoch, interruption and resumption."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossret.data.batches import Batch, prefetched
from crossret.data.corpus import Corpus, PrecomputedCorpus, check_boxes_agree, check_readable, corpus_for
from crossret.distributed import Group, RankLost, Share
from crossret.encoders import identity_of
from crossret.evaluation import RetrievalMetrics
from crossret.files.directories import occupied
from crossret.hyperparameters import TrainingConfig
from crossret.models.base import pretrained_parts
from crossret.models.checkpoints import BEST, check_vocabulary, describe_model, digest, save_model, tensors_of
from crossret.models.protocol import Matcher
from crossret.terminal import progress_bar
from crossret.training.callbacks import LOG, Callback, Epoch, JsonLines, Start, Step, TrainingResult
from crossret.training.gradients import add_gradients
from crossret.training.inputs import check_agreement, check_all_features, held_on_gpu, warn_of_partial_statistics
from crossret.training.interruptions import uninterrupted
from crossret.training.optimizer import optimizer_of, set_learning_rate
from crossret.training.precision import products_in_tf32
from crossret.training.progress import TerminalProgress
from crossret.training.randomness import random_state, seed_rank, set_random_state
from crossret.training.state import Machine, Position, load_state, save_state
from crossret.training.validation import validate

CHECKPOINT = "checkpoint.safetensors"
_MAY_CHANGE = ("epochs", "patience", "log_every", "checkpoint_every", "encode_chunk")  # on resuming
_ENDING = ("epochs", "patience")  # ranks must agree on these, or some go on alone


class ResumedElsewhere(UserWarning):
    """A training goes on with other threads, instructions or ranks than before, so that the last bits may differ."""


def train(
    model: Matcher,
    train_data: Corpus,
    dev_data: Corpus,
    config: TrainingConfig,
    out_dir: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    group: Group | None = None,
    gpu_features: float | None = None,
) -> TrainingResult:
    """Train ``model`` on whatever device it is, in this process or, with the same arguments in each, in several.

    Writes into ``out_dir``, which is made if needed and in which no other process may train meanwhile:
    ``checkpoint.safetensors``, from which training resumes, bit for bit with as many threads, the same CPU instructions
    and device as before (with others there is a ``ResumedElsewhere`` warning); ``best/``, the model of the epoch that
    was best on ``dev_data`` by ``config.select_by`` (see ``load_model``); ``log.jsonl``, one object every ``log_every``
    steps and one an epoch. The same training writes the same bytes. An interruption (Ctrl-C, or a signal of which
    Python makes a KeyboardInterrupt) writes a checkpoint and goes on as KeyboardInterrupt.

    Several processes, the ranks of ``group``, share every batch: each encodes its part, negatives are sought among all,
    gradients are summed, and steps are those of one process up to rounding, but for what a model draws at random and
    for statistics of batches, which are of a rank's part (a ``PartialStatistics`` warning says so, as it does of parts
    that ``encode_chunk`` makes); those kept in buffers are the first one's. The first rank alone writes
    and shows anything; all read the data and, on resuming, the checkpoint, of which the ranks may be more or fewer than
    those that wrote it: as many go on bit for bit. Where a rank is lost the others end, the first with a checkpoint.

    A parameter that the model does not train in an epoch (``Matcher.trains``), or that requires no gradient when the
    training starts, keeps its value: it has no gradient, no share in the gradient's norm and no weight decay. In the
    end, however it comes, all require a gradient that did before.

    Args:
        model: a freshly made model; on resuming its weights are replaced by the checkpoint's.
        train_data, dev_data: images and captions, of the same vocabulary, or tokens of captions.
        config: how to train. On resuming, epochs, patience, log_every, checkpoint_every and encode_chunk may differ
            from before, but for the epochs of a cosine.
        resume: go on from the checkpoint in ``out_dir``; a finished training returns at once.
        progress: show progress on the terminal (standard error).
        callbacks: hear of it in the first rank's process: other logs, ``crossret.training.callbacks`` has some,
            or whatever is yours.
        group: the processes that train together; by default those of ``torch.distributed``'s default process group,
            else this one alone.
        gpu_features: GiB of a GPU's memory that features may take, to be read from there at every step; by default half
            of what is free once the model is there. A split that does not fit stays where it is.

    Raises:
        FileExistsError: ``out_dir`` has a checkpoint and ``resume`` is False.
        FileNotFoundError: it has none and ``resume`` is True.
        BlockingIOError: another process trains in ``out_dir``.
        ValueError: model and data do not fit each other, features are not finite (found before anything is written,
            on resuming as they are read; see ``check_features``), the checkpoint is malformed or of another training,
            the loss or its gradient is not finite (the message names the step, and the last checkpoint stands), or
            what a callback logs by is not installed; or the ranks do not train the same. What rank 0 finds all ranks
            raise.
        RankLost: another rank has ended, or does not answer within the process group's timeout.
    """
    group = Group.current() if group is None else group
    check_vocabulary(model, train_data.vocabulary)
    if digest(dev_data.vocabulary) != digest(train_data.vocabulary):
        raise ValueError("dev_data: its vocabulary is not that of train_data")
    for data in (train_data, dev_data):
        check_readable(model.config, data)
    check_boxes_agree(model.config, train_data, dev_data)
    out_dir = Path(out_dir)
    device = next(model.parameters()).device
    # The caller's generators are as before when training ends, and training does not depend on them.
    drawn = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with ExitStack() as lock, drawn, products_in_tf32(config.tf32):
        group.first(lambda: _occupy(out_dir, resume, lock))
        if not resume:  # or it has been done
            check_all_features([train_data, dev_data], group, progress=progress and group.is_first)
        with progress_bar("clustering regions") if progress and group.is_first else nullcontext() as clustered:
            corpora = [corpus_for(model.config, data, clustered) for data in (train_data, dev_data)]
        train_data, dev_data = held_on_gpu(corpora, device, gpu_features, progress=progress and group.is_first)
        run = _Run(model, train_data, dev_data, config, out_dir, resume, group)
        model.train()  # all but what is frozen
        warn_of_partial_statistics(model, config, min(config.batch_size, train_data.n_captions), group)
        heard = [*callbacks, TerminalProgress()] if progress else callbacks
        try:
            group.first(lambda: run.begin(heard, resume))
            try:
                run.run()
            except (KeyboardInterrupt, RankLost):
                with uninterrupted():
                    run.rewind()
                    run.save()
                raise
        except BaseException:
            with suppress(Exception):  # the error before is the one to tell
                run.close(None)
            raise
        result = run.result()
        run.close(result)
        group.first(lambda: None)  # the files are whole where any rank returns
    return result


def _occupy(out_dir: Path, resume: bool, lock: ExitStack) -> None:
    """Keep other processes out of the directory, which has a training to resume or has none."""
    checkpoint = out_dir / CHECKPOINT
    if resume and not checkpoint.exists():
        raise FileNotFoundError(f"{checkpoint}: no such file, so that there is nothing to resume")
    lock.enter_context(occupied(out_dir))
    if not resume and checkpoint.exists():
        raise FileExistsError(f"{checkpoint}: there is a training already; resume it or choose another directory")


class _Run:
    """One training: its state, and the steps that advance it.

    ``position``, the weights, the optimizer's state, ``random`` and ``buffers`` change together, inside
    ``uninterrupted`` blocks: whenever a KeyboardInterrupt can arrive, or another rank can be missed, they are the state
    after a whole step, and ``save`` may write them once ``rewind`` has given the model its ``buffers``. They are the
    same on all ranks, but for ``random``, which is the first one's.
    """

    def __init__(
        self,
        model: Matcher,
        train_data: Corpus,
        dev_data: Corpus,
        config: TrainingConfig,
        out_dir: Path,
        resume: bool,
        group: Group,
    ) -> None:
        self.model = model
        self.train_data = train_data
        self.dev_data = dev_data
        self.config = config
        self.out_dir = out_dir
        self.group = group
        self.device = next(model.parameters()).device
        self.parameters = dict(model.named_parameters())
        self.trainable = {name for name, parameter in self.parameters.items() if parameter.requires_grad}
        self.optimizer = optimizer_of(model, config)
        self.identity = self._identity()
        self.machine = Machine.this(self.device, group.size)
        self.epoch_steps = config.steps_of(train_data.n_captions)
        ending = {name: getattr(config, name) for name in _ENDING}
        check_agreement(group, {**self.identity, **ending, "resume": resume})
        torch.manual_seed(config.seed)
        self.random = random_state(self.device)
        self.position = Position()
        if resume:
            self._load()
        # Checkpoints on disks of their own may be of different steps, with other averages in the optimizer.
        check_agreement(group, {"a checkpoint of step": self.position.step})
        group.broadcast(tensors_of(model).values())
        self.buffer_names = [name for name in tensors_of(model) if name not in self.parameters]
        self.buffers = self._copied_buffers()
        self.log: JsonLines | None = None
        self.callbacks: list[Callback] = []  # on the first rank alone
        self.clock, self.epoch_clock = _Clock(), _Clock()

    def begin(self, callbacks: Sequence[Callback], resume: bool) -> None:
        """Open the log, tell of the start, and have a checkpoint."""
        position = self.position
        self.log = log = JsonLines(self.out_dir / LOG, position.log_bytes)
        self.callbacks.append(log)
        held = sum(data.bytes_held for data in (self.train_data, self.dev_data) if isinstance(data, PrecomputedCorpus))
        start = Start(
            self.out_dir, self.model, self.config, resume, position.epoch, position.step, self.epoch_steps, log.lines,
            held,
        )  # fmt: skip
        for callback in callbacks:
            callback.on_start(start)
            self.callbacks.append(callback)
        if not resume:
            self.save()

    def run(self) -> None:
        """Go on until all epochs are done, or too many were no better."""
        config, position = self.config, self.position
        patience = config.epochs if config.patience is None else config.patience
        while position.epoch < config.epochs and position.epoch - position.best_epoch < patience:
            self._train_epoch()
            self._validate()

    def rewind(self) -> None:
        """Give up a step that was begun: encoding in it has changed the model's buffers, and they alone."""
        for name, buffer in self._buffers().items():
            buffer.copy_(self.buffers[name])

    def save(self) -> None:
        """Write the checkpoint, if this is the first rank."""
        if self.log is None:
            return
        self.position.log_bytes = self.log.sync()
        checkpoint = self.out_dir / CHECKPOINT
        save_state(checkpoint, self.model, self.optimizer, self.random, self.position, self.identity, self.machine)

    def result(self) -> TrainingResult:
        position = self.position
        metrics = RetrievalMetrics.from_dict(position.best)
        ended_early = position.epoch < self.config.epochs
        return TrainingResult(metrics.rsum, position.best_epoch, position.epoch, ended_early, metrics, self.out_dir)

    def close(self, result: TrainingResult | None) -> None:
        """Leave the parameters as trainable as they were, and the callbacks with their ends."""
        for name in self.trainable:
            self.parameters[name].requires_grad_(True)
        with ExitStack() as ends:  # each is told, whatever another does
            for callback in self.callbacks:
                ends.callback(callback.on_end, result)

    def _load(self) -> None:
        checkpoint = self.out_dir / CHECKPOINT
        self.position, states, machine = load_state(
            checkpoint, self.model, self.optimizer, self.random, self.identity, self.epoch_steps
        )
        if machine != self.machine and self.group.is_first:
            warnings.warn(
                f"{checkpoint}: written with {machine}, resumed with {self.machine}: "
                "the training goes on, but not bit for bit",
                ResumedElsewhere,
                stacklevel=4,
            )
        self.random = {**self.random, **states}

    def _identity(self) -> dict[str, Any]:
        """Facts that must not change between a checkpoint and its resumption."""
        description, schedule = json.loads(describe_model(self.model)), json.loads(self.config.to_json())
        return {
            "model": description["model"],
            **{f"the model's {name}": value for name, value in description["config"].items()},
            **identity_of(pretrained_parts(self.model)),
            "vocabulary": digest(self.train_data.vocabulary),
            "training captions": self.train_data.n_captions,
            "training images": self.train_data.n_images,
            "training data": self.train_data.fingerprint(),
            "development images": self.dev_data.n_images,
            "development data": self.dev_data.fingerprint(),
            **{name: value for name, value in schedule.items() if name not in _MAY_CHANGE},
            **({"epochs": self.config.epochs} if self.config.decay == "cosine" else {}),  # which it ends with
        }

    def _buffers(self) -> dict[str, Tensor]:
        """Buffers of the model, as statistics of batches; most models have none, which costs nothing."""
        tensors = tensors_of(self.model) if self.buffer_names else {}
        return {name: tensors[name] for name in self.buffer_names}

    def _copied_buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._buffers().items()}

    def _train_epoch(self) -> None:
        position, config = self.position, self.config
        for name in self.trainable:
            self.parameters[name].requires_grad_(self.model.trains(name, position.epoch))
        self.model.train()
        self.clock.start()
        self.epoch_clock.start()
        read = self.train_data.training_batches(
            config.batch_size,
            seed=config.seed,
            epoch=position.epoch,
            start=position.epoch_step * config.accumulate,
            part=lambda n: Share.cut(self.group, n).encoded_rows,
        )
        with closing(prefetched(read, pin=self.device.type == "cuda")) as batches:
            while step := list(islice(zip(self._shares(), batches, strict=False), config.accumulate)):
                taken = self._step(step)
                for callback in self.callbacks:
                    callback.on_step(taken)
                if position.step % config.checkpoint_every == 0:
                    self.save()

    def _shares(self) -> Iterator[Share]:
        """Shares of this rank in the batches that are left of the epoch."""
        size, captions = self.config.batch_size, self.train_data.n_captions
        for begin in range(self.position.epoch_step * self.config.accumulate * size, captions, size):
            yield Share.cut(self.group, min(size, captions - begin))

    def _step(self, batches: Sequence[tuple[Share, Batch]]) -> Step:
        """One step of the optimizer."""
        position = self.position
        set_random_state(self.random, self.device)  # which a callback may have drawn from
        if not self.group.is_first:
            seed_rank(self.config.seed, position.step, self.group.rank)
        rate = self.config.learning_rate_of(position.step, self.epoch_steps)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad()
        place = f"step {position.step + 1} (epoch {position.epoch + 1})"
        terms, norm = add_gradients(self.model, self.group, self.config, batches, place)
        if position.sums and position.sums.keys() != terms.keys():
            raise ValueError(
                f"{self.out_dir / CHECKPOINT}: its position sums {', '.join(position.sums)}, "
                f"but the terms of the loss are {', '.join(terms)}"
            )
        self.group.broadcast(self._buffers().values())
        with uninterrupted():
            self.optimizer.step()
            position.take_step(terms)
            self.random = random_state(self.device)
            self.buffers = self._copied_buffers()
            for clock in (self.clock, self.epoch_clock):
                clock.count(sum(share.total for share, _ in batches))
            if position.step % self.config.log_every == 0:
                self._log(
                    "step", {**position.take_means(), "learning_rate": rate, "gradient_norm": norm}, self.clock.rate
                )
                self.clock.start()
        return Step(position.epoch + 1, position.step, terms, rate, norm, self.epoch_clock.rate)

    def _log(self, kind: str, figures: Mapping[str, Any], rate: float) -> None:
        """Add a line to the log: what it says must be the state by now, as a callback may end the training."""
        line = {"kind": kind, "epoch": self.position.epoch + (kind == "step"), "step": self.position.step, **figures}
        for callback in self.callbacks:
            callback.on_log(line, rate)

    def _validate(self) -> None:
        position = self.position
        rate = self.epoch_clock.rate
        metrics = validate(self.model, self.dev_data, self.group, batch_size=self.config.batch_size)
        best = position.best_epoch == 0 or self._merit(metrics) > self._merit(RetrievalMetrics.from_dict(position.best))
        with uninterrupted():
            if best and self.group.is_first:
                save_model(self.model, self.out_dir / BEST, self.train_data.vocabulary)
            position.epoch += 1
            loss = position.epoch_loss / self.epoch_steps
            position.epoch_step, position.epoch_loss = 0, 0.0
            if best:
                position.best_epoch, position.best = position.epoch, metrics.as_dict()
            self._log("epoch", {"loss": loss, "best": best, **metrics.as_dict()}, rate)
            self.save()
        for callback in self.callbacks:
            callback.on_epoch(Epoch(position.epoch, position.step, loss, metrics, best, rate))

    def _merit(self, metrics: RetrievalMetrics) -> float:
        return metrics.rsum if self.config.select_by == "rsum" else metrics.i2t.r1 + metrics.t2i.r1


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
