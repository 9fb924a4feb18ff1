"""Display of a training: a bar or lines with loss, rate and remaining time, and a line an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crossret.progress import ProgressLines
from crossret.training.callbacks import Callback, Epoch, Start, Step, TrainingResult


class TerminalProgress(Callback):
    """Progress on standard error: a line an epoch, and a bar between them.

    Where standard error is no terminal, there are the lines of ``ProgressLines`` instead of the bar.

    Args:
        clock: seconds from any moment on.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def on_start(self, start: Start) -> None:
        self._start = start
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,  # a file would get a bar after every line
        )
        total = start.config.epochs * start.epoch_steps
        self._task = self._progress.add_task("training", total=total, completed=start.step, status="")
        self._now = "training"
        self.lines = ProgressLines(
            lambda: self._now, done=start.step, enabled=self._progress.disable, clock=self._clock
        )
        self.lines.update(start.step, total)
        self._progress.start()
        self.lines.__enter__()

    def on_step(self, step: Step) -> None:
        steps = self._start.epoch_steps
        done = step.step - (step.epoch - 1) * steps
        epoch = f"epoch {step.epoch}/{self._start.config.epochs}"
        if done < steps:
            status = f"loss {step.terms['loss']:.3f}  {step.captions_per_second:,.0f} captions/s"
            self._now = f"{epoch}  step {done:,}/{steps:,}  {status}"
        else:
            status = "validating"
            self._now = f"{epoch}  {status}"
        self._progress.update(self._task, completed=step.step, description=epoch, status=status)
        self.lines.done = step.step

    def on_epoch(self, epoch: Epoch) -> None:
        metrics = epoch.metrics
        line = (
            f"epoch {epoch.epoch}  loss {epoch.loss:.3f}  R@1 {metrics.i2t.r1:.1f} / {metrics.t2i.r1:.1f}  "
            f"rsum {metrics.rsum:.1f}  {epoch.captions_per_second:,.0f} captions/s"
            f"{'  best so far' if epoch.best else ''}"
        )
        if self._progress.disable:
            self.lines.say(line)
        else:
            with suppress(OSError):  # nor does a training end because nobody can see it any more
                self._progress.console.print(line)

    def on_end(self, result: TrainingResult | None) -> None:
        self.lines.__exit__()
        with suppress(OSError):  # a gone terminal, for which the training is ending
            self._progress.stop()
