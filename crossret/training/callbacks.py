"""Callbacks of a training's steps and epochs, and the logs that are written by them."""

from __future__ import annotations

import csv
import importlib
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TextIO

from crossret.evaluation import RetrievalMetrics
from crossret.files.json import parse_json_object, read_json_object, write_json
from crossret.files.naming import named_errors
from crossret.files.regular import LARGEST_LINES, read_regular
from crossret.hyperparameters import TrainingConfig
from crossret.models.protocol import Matcher
from crossret.training.curves import draw_training

LOG = "log.jsonl"

# Fields of a line of steps, beside the terms of the loss.
STEP_FIELDS = ("kind", "epoch", "step", "learning_rate", "gradient_norm")
# Fields of a line of epochs, beside its loss and other figures.
EPOCH_FIELDS = ("kind", "epoch", "step", "best", "i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10")

Line = Mapping[str, Any]

_SECONDS = 30  # between two drawings of the curves while training goes on: one takes a good part of a second


@dataclass(frozen=True)
class Start:
    """Where a training begins, or goes on.

    Attributes:
        directory: where its files are.
        model: the model in training, with the weights that it starts from.
        config: how.
        resumed: whether it goes on from a checkpoint.
        epoch, step: epochs finished and steps taken before.
        epoch_steps: steps of an epoch.
        lines: of the log, those of before.
        bytes_held: of the data's features that the model's GPU holds.
    """

    directory: Path
    model: Matcher
    config: TrainingConfig
    resumed: bool
    epoch: int
    step: int
    epoch_steps: int
    lines: Sequence[Line]
    bytes_held: int = 0


@dataclass(frozen=True)
class Step:
    """A step of the optimizer that was taken.

    Attributes:
        epoch, step: both from 1; steps are counted from the beginning of the training.
        terms: of the loss, by name, "loss" among them: means over the step's batches.
        learning_rate: of the step.
        gradient_norm: L2, before it was scaled down.
        captions_per_second: since the epoch's first step, or that at which the training went on.
    """

    epoch: int
    step: int
    terms: Mapping[str, float]
    learning_rate: float
    gradient_norm: float
    captions_per_second: float


@dataclass(frozen=True)
class Epoch:
    """An epoch that is over and validated.

    Attributes:
        epoch, step: from 1, and steps taken since the beginning of the training.
        loss: its mean over the epoch's steps.
        metrics: retrieval on the development set.
        best: whether the epoch is the best so far; its model is in ``best/`` by now.
        captions_per_second: of its steps.
    """

    epoch: int
    step: int
    loss: float
    metrics: RetrievalMetrics
    best: bool
    captions_per_second: float


@dataclass(frozen=True)
class TrainingResult:
    """Result of a finished training.

    Attributes:
        best_rsum: the rsum on the development set of the best epoch, by ``TrainingConfig.select_by``.
        best_epoch: that epoch, from 1.
        epochs_run: epochs finished, those before an interruption included.
        ended_early: whether that was for want of a better epoch.
        metrics: retrieval on the development set in the best epoch.
        out_dir: where the files are; the best epoch's model is in ``out_dir / "best"``.
    """

    best_rsum: float
    best_epoch: int
    epochs_run: int
    ended_early: bool
    metrics: RetrievalMetrics
    out_dir: Path


class Callback:
    """Calls from a training as it goes on, in the first rank's process alone; a subclass overrides those it wants.

    Several are called in the order of the list, in the end in the reverse one. An error ends the training as any other
    does; KeyboardInterrupt leaves a checkpoint, from which it may go on. A step or an epoch of which an interruption
    kept the call back is not told by the training that goes on.
    """

    def on_start(self, start: Start) -> None:
        """All is in order, and no step is taken yet."""

    def on_step(self, step: Step) -> None:
        """A step was taken; called for each."""

    def on_log(self, line: Line, captions_per_second: float) -> None:
        """A line of the log: "kind", and the fields that log.jsonl has of a "step" or an "epoch".

        Steps have a line every ``TrainingConfig.log_every``, with means over these. Interruptions wait for its end, so
        that every line is told once, by whichever process trains on: be brief. ``captions_per_second`` is the speed
        since the last line; it stays out of the log, whose bytes are the same whenever the training is.
        """

    def on_epoch(self, epoch: Epoch) -> None:
        """An epoch is validated, and the checkpoint of it written."""

    def on_end(self, result: TrainingResult | None) -> None:
        """The training is over, or None: was interrupted or failed. Called wherever ``on_start`` was and returned."""


class JsonLines(Callback):
    """log.jsonl, which every training has: an object a line, nothing in it that differs between two same trainings.

    Args:
        path: the log; it is cut back to what the checkpoint knows.
        length: bytes to keep; 0 begins a new log.

    Attributes:
        lines: kept lines.

    Raises:
        ValueError: the log is shorter than ``length``: it is not the one that the checkpoint knows; or a kept line is
            no JSON object, named with its number.
    """

    def __init__(self, path: str | os.PathLike[str], length: int) -> None:
        kept = read_regular(path, LARGEST_LINES)[:length] if length and Path(path).is_file() else b""
        if len(kept) < length:
            raise ValueError(f"{path}: has {len(kept)} bytes, but the checkpoint was written after {length}")
        self.lines = [_line(line, f"{path}, line {number}") for number, line in enumerate(kept.splitlines(), start=1)]
        # A line is written through at once, so that the file can be followed while the training runs.
        self._path, self._length = path, length
        self._file = FileIO(path, "ab")
        with named_errors(path):
            self._file.truncate(length)

    def on_log(self, line: Line, captions_per_second: float) -> None:
        written = json.dumps(line).encode() + b"\n"
        with named_errors(self._path):
            self._file.write(written)
        self._length += len(written)

    def sync(self) -> int:
        """Have all lines on the disk before a checkpoint counts on them; how many bytes they are."""
        with named_errors(self._path):
            os.fsync(self._file.fileno())
        return self._length

    def on_end(self, result: TrainingResult | None) -> None:
        self._file.close()


def _line(text: bytes, place: str) -> Line:
    """A line as this training wrote it, which others may have changed since."""
    line = parse_json_object(text, place)
    fields = {"step": STEP_FIELDS, "epoch": EPOCH_FIELDS}.get(str(line.get("kind")))
    if fields is None:
        raise ValueError(f"{place}: not a line of a training's log: its kind is {line.get('kind')!r}")
    for name in {**dict.fromkeys([*fields, "loss"]), **line}:
        if name != "kind" and not isinstance(line.get(name), (int, float)):
            raise ValueError(f"{place}: not a line of a training's log: its {name} is {line.get(name)!r}")
    return line


class Csv(Callback):
    """Two tables as spreadsheets read them, steps.csv and epochs.csv: a column for a field of the log.

    They are made anew where a training goes on, so that they always hold what the log holds.
    """

    def on_start(self, start: Start) -> None:
        self._paths = {kind: start.directory / f"{kind}s.csv" for kind in ("step", "epoch")}
        self._files: dict[str, TextIO] = {}
        self._writers: dict[str, csv.DictWriter[str]] = {}
        for path in self._paths.values():
            path.unlink(missing_ok=True)
        for line in start.lines:
            self.on_log(line, 0.0)

    def on_log(self, line: Line, captions_per_second: float) -> None:
        kind, values = line["kind"], {name: value for name, value in line.items() if name != "kind"}
        with named_errors(self._paths[kind]):
            if kind not in self._writers:  # only a line tells the terms of the loss
                self._files[kind] = open(self._paths[kind], "w", newline="", encoding="utf-8")  # noqa: SIM115
                self._writers[kind] = csv.DictWriter(self._files[kind], list(values))
                self._writers[kind].writeheader()
            self._writers[kind].writerow(values)
            self._files[kind].flush()

    def on_end(self, result: TrainingResult | None) -> None:
        for file in self._files.values():
            file.close()


class TensorBoard(Callback):
    """Event files under tensorboard/, which TensorBoard shows: fields of steps by "train/…", of epochs by "dev/…".

    Several trainings are compared by pointing TensorBoard at the parent of their directories. What an earlier process
    showed beyond the checkpoint is hidden. Needs the extra "tensorboard"; ``on_start`` raises a ValueError without.
    """

    def on_start(self, start: Start) -> None:
        module = _installed("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self._directory = start.directory / "tensorboard"
        with named_errors(self._directory):
            self._writer = module.SummaryWriter(str(self._directory), purge_step=start.step + 1)

    def on_log(self, line: Line, captions_per_second: float) -> None:
        with named_errors(self._directory):
            for name, value in _figures(line, captions_per_second).items():
                self._writer.add_scalar(name, value, line["step"])

    def on_end(self, result: TrainingResult | None) -> None:
        with named_errors(self._directory):
            self._writer.close()


class WeightsAndBiases(Callback):
    """A run of Weights & Biases by the names that ``TensorBoard`` has, with all settings.

    It goes on where the training does:
    wandb.json beside the checkpoint holds its id. Without a network, WANDB_MODE=offline writes under wandb/. Needs the
    extra "wandb"; without it, or a log-in, ``on_start`` raises a ValueError.

    Args:
        options: of ``wandb.init``, as project="..."; by default its environment variables say.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def on_start(self, start: Start) -> None:
        wandb = _installed("wandb", "Weights & Biases", "wandb")
        path = start.directory / "wandb.json"
        options = dict(self._options)
        if start.resumed and path.exists():
            options |= {"id": read_json_object(path).get("id"), "resume": "allow"}
        settings = {"model": {"kind": start.model.kind, **asdict(start.model.config)}, "training": asdict(start.config)}
        try:
            self._run = wandb.init(**{"dir": str(start.directory), "config": settings, **options})
        except wandb.Error as error:
            raise ValueError(f"Weights & Biases: {error}") from error
        # The axis is the training's step. By wandb's own, a line at the step of an earlier process's last is lost. By
        # this one, lines beyond the checkpoint are there twice, at the same place.
        self._run.define_metric("*", step_metric="step")
        write_json(path, {"id": self._run.id})

    def on_log(self, line: Line, captions_per_second: float) -> None:
        self._run.log({**_figures(line, captions_per_second), "step": line["step"]})

    def on_end(self, result: TrainingResult | None) -> None:
        self._run.finish(exit_code=0 if result is not None else 1)


class Curves(Callback):
    """curves.png: the loss of the steps and recall after each epoch, drawn again as the training goes on."""

    def on_start(self, start: Start) -> None:
        self._path = start.directory / "curves.png"
        self._lines = list(start.lines)
        self._drawn = 0
        self._when = time.monotonic()

    def on_log(self, line: Line, captions_per_second: float) -> None:
        self._lines.append(line)

    def on_epoch(self, epoch: Epoch) -> None:
        if time.monotonic() - self._when >= _SECONDS:
            self._draw()

    def on_end(self, result: TrainingResult | None) -> None:
        self._draw()

    def _draw(self) -> None:
        """Draw what there is, if that is more than was drawn before; a picture that cannot be written is a warning."""
        if len(self._lines) > self._drawn:
            try:
                draw_training(self._path, self._lines)
            except OSError as error:
                warnings.warn(f"the curves are not drawn: {error}", stacklevel=2)
            self._drawn, self._when = len(self._lines), time.monotonic()


LOGS: dict[str, type[Callback]] = {"csv": Csv, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Logs that the command line's --log may name."""


def _installed(module: str, name: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{name} is not installed: pip install 'crossret[{extra}]' ({error})") from error


def _figures(line: Line, captions_per_second: float) -> dict[str, float]:
    """The numbers of a line by names in groups."""
    group = "train" if line["kind"] == "step" else "dev"
    figures = {name: value for name, value in line.items() if name not in ("kind", "epoch", "step", "best")}
    if group == "train":
        figures["captions_per_second"] = captions_per_second
    return {f"{group}/{name}": value for name, value in figures.items()}
