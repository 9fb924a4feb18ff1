"""Options of the commands that encode pictures: `extract` and `index`."""

from __future__ import annotations

from typing import Annotated, Literal

from crossret import system
from crossret.cli.options import option

_MOST_WORKERS = 8  # started at most without being asked for

BatchSize = Annotated[int, option("Pictures that are encoded together.", min=1, max=65536)]
Workers = Annotated[
    int | None,
    option(f"Threads that read pictures; by default one a core, {_MOST_WORKERS} at most.", min=1, max=256),
]
Amp = Annotated[bool, option("Compute the encoder in bfloat16 where that is safe.", "--amp")]
Unreadable = Annotated[
    Literal["refuse", "skip"], option("Pictures that cannot be read: end, or name them and leave them out.")
]


def reading_threads() -> int:
    """How many threads read pictures where nobody says."""
    return min(system.cores(), _MOST_WORKERS)
