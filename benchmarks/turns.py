"""Times of calls that take turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Side = Callable[[], float]  # seconds of one turn


@dataclass(frozen=True)
class Turns:
    """Seconds of every side, turn by turn."""

    seconds: Mapping[str, list[float]]

    def median(self, side: str) -> float:
        return statistics.median(self.seconds[side])

    def ratio(self, side: str, other: str) -> float:
        """The median of the two sides' ratios within a turn."""
        pairs = zip(self.seconds[side], self.seconds[other], strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    def __str__(self) -> str:
        return ", ".join(f"{side} {_milliseconds(self.median(side))}" for side in self.seconds)


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:.{0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2}f} ms"


def timed(call: Callable[[], object]) -> Side:
    """A side that is a call, by the clock."""

    def seconds() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return seconds


def take_turns(sides: Mapping[str, Side], seconds: float, least: int, most: int) -> Turns:
    """Measures A, B, A, B …, after a turn that does not count: for about so many seconds, `least` to `most` turns."""
    start = time.perf_counter()
    for side in sides.values():
        side()
    rounds = min(max(int(seconds / (time.perf_counter() - start)), least), most)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return Turns(found)
