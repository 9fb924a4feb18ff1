"""What a training shows: a bar or lines with loss, rate and remaining time, and a line an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from crossret.evaluation import RetrievalMetrics
from crossret.progress import ProgressLines


class TrainingProgress:
    """A context in which a training shows its progress on standard error: a line an epoch, and a bar between them.

    Where standard error is no terminal, there are the lines of ``ProgressLines`` instead of the bar.

    Args:
        epochs: to be trained altogether.
        epoch_steps: steps of an epoch.
        done: steps done before, where training is resumed.
        enabled: whether to show anything.
        clock: seconds from any moment on.
    """

    def __init__(
        self,
        epochs: int,
        epoch_steps: int,
        done: int,
        *,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epochs = epochs
        self._epoch_steps = epoch_steps
        self._enabled = enabled
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (enabled and console.is_terminal),  # a file would get a bar after every line
        )
        total = epochs * epoch_steps
        self._task = self._progress.add_task("training", total=total, completed=done, status="")
        self._now = "training"
        self.lines = ProgressLines(
            lambda: self._now, done=done, enabled=enabled and not console.is_terminal, clock=clock
        )
        self.lines.update(done, total)

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        self.lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lines.__exit__(kind, error, traceback)
        with suppress(OSError):  # of a terminal that is gone, while a training that was told so is ending
            self._progress.stop()

    def step(self, epoch: int, step: int, loss: float, rate: float) -> None:
        """``step`` steps of this epoch (from 1) are done; ``rate`` is captions a second."""
        done = (epoch - 1) * self._epoch_steps + step
        status = f"loss {loss:.3f}  {rate:,.0f} captions/s"
        self._progress.update(self._task, completed=done, description=f"epoch {epoch}/{self._epochs}", status=status)
        self._now = f"epoch {epoch}/{self._epochs}  step {step:,}/{self._epoch_steps:,}  {status}"
        self.lines.done = done

    def validating(self, epoch: int) -> None:
        """The epoch's steps are done and its validation begins."""
        self._progress.update(self._task, description=f"epoch {epoch}/{self._epochs}", status="validating")
        self._now = f"epoch {epoch}/{self._epochs}  validating"

    def epoch(self, epoch: int, loss: float, metrics: RetrievalMetrics, best: bool, rate: float) -> None:
        """The epoch is validated; it was trained with ``rate`` captions a second."""
        if not self._enabled:
            return
        line = (
            f"epoch {epoch}  loss {loss:.3f}  R@1 {metrics.i2t.r1:.1f} / {metrics.t2i.r1:.1f}  "
            f"rsum {metrics.rsum:.1f}  {rate:,.0f} captions/s{'  best so far' if best else ''}"
        )
        if self._progress.disable:
            self.lines.say(line)
        else:
            with suppress(OSError):  # nor does a training end because nobody can see it any more
                self._progress.console.print(line)
