"""How far a long task is, in lines, where standard error is no terminal and a bar would be lost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

SILENCE = 30.0  # seconds, at most, between two signs of life
_LOOK = 1.0  # seconds between two looks at the clock

Progress = Callable[[int, int], None]
"""Called with how many items are done and how many there are."""


class ProgressLines:
    """A context in which a line on standard error says how far a task is whenever nothing was said for 30 seconds.

    A thread sees to it, so that a task that is long at one thing is heard of, too.

    Args:
        describe: line to say, without the time that is left; called by the thread.
        done: amount done before, which took none of the time.
        enabled: whether to say anything.
        clock: seconds from any moment on.

    Attributes:
        done, total: how far it is; total is None until that is known.
    """

    def __init__(
        self,
        describe: Callable[[], str],
        *,
        done: int = 0,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done = self._done_before = done
        self.total: int | None = None
        self._describe = describe
        self._clock = clock
        self._began = self._said = clock()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True) if enabled else None

    def __enter__(self) -> ProgressLines:
        self._began = self._said = self._clock()
        if self._watcher is not None:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()

    def begin(self, done: int) -> None:
        """So much was done before, and the time that the rest takes begins now."""
        self.done = self._done_before = done
        self._began = self._clock()

    def update(self, done: int, total: int) -> None:
        """So much is done, of so much."""
        self.done, self.total = done, total

    def say(self, text: str) -> None:
        """Print a line, after which the silence begins anew."""
        self._said = self._clock()
        # Not rich, which ends the program where nobody reads: the task goes on.
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def look(self) -> None:
        """Say how far it is, if nothing was said for too long."""
        if self._clock() - self._said >= SILENCE:
            self.say("  ".join([self._describe(), *self._left()]))

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            self.look()

    def _left(self) -> list[str]:
        """The time that the rest takes at the mean speed so far, as text; nothing where that is not known."""
        if self.total is None or self.done <= self._done_before:
            return []
        seconds = (self._clock() - self._began) / (self.done - self._done_before) * (self.total - self.done)
        minutes, second = divmod(round(seconds), 60)
        return [f"{minutes // 60}:{minutes % 60:02}:{second:02} left"]
