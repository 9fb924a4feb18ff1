"""What a training writes beside its checkpoints, line by line: its log, the same in other forms, and curves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from crossret.training.curves import Curves
from crossret.training.log import CsvFollower, Entry, Follower, TensorBoardFollower, TrainingLog
from crossret.training.state import Position

LOG = "log.jsonl"
CURVES = "curves.png"


class Records:
    """The records of the process that writes the files; of another one, ``Records()``, there are none.

    Args:
        out_dir: where to write.
        position: where the training goes on: what the log holds beyond is cut.

    Raises:
        ValueError: as ``TrainingLog``.
    """

    def __init__(self, out_dir: Path | None = None, position: Position | None = None) -> None:
        self._log: TrainingLog | None = None
        self._followers: list[Follower] = []
        self._curves: Curves | None = None
        if out_dir is not None and position is not None:
            self._out_dir, self._position = out_dir, position
            self._log = TrainingLog(out_dir / LOG, position.log_bytes)

    def follow(self, *, csv: bool, tensorboard: bool, curves: bool) -> None:
        """Have the log's entries in other forms, too."""
        if self._log is None:
            return
        if csv:
            self._followers.append(CsvFollower(self._out_dir, self._log.entries))
        if tensorboard:
            self._followers.append(TensorBoardFollower(self._out_dir, self._position.step))
        if curves:
            self._curves = Curves(self._out_dir / CURVES, self._log.entries)

    def write(self, entry: Entry, captions_per_second: float) -> None:
        """Append an entry; the position knows of it."""
        if self._log is None:
            return
        self._log.write(entry)
        self._position.log_bytes = self._log.length
        for follower in self._followers:
            follower.write(entry, captions_per_second)

    def sync(self) -> None:
        """Have all entries on the disk before a checkpoint counts on them."""
        if self._log is not None:
            self._log.sync()

    def draw_sometimes(self) -> None:
        """Draw the curves, if it is time to."""
        if self._curves is not None:
            self._curves.draw_sometimes()

    def close(self) -> None:
        """Leave the log whole and drawn."""
        with ExitStack() as files:  # each is closed, whatever another does
            if self._log is not None:
                files.callback(self._log.close)
            for follower in self._followers:
                files.callback(follower.close)
        if self._curves is not None:
            self._curves.draw()
