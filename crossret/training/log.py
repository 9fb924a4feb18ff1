"""The log of a training: one JSON object a line."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

# Of a line of steps, beside the terms of the loss.
STEP_FIELDS = ("kind", "epoch", "step", "learning_rate", "gradient_norm", "captions_per_second")


class TrainingLog:
    """Appends lines to a file that is cut back to a known length first.

    Args:
        path: the log.
        length: bytes to keep; 0 begins a new log.

    Raises:
        ValueError: the log is shorter than ``length``: it is not the one that the checkpoint knows.
    """

    def __init__(self, path: str | os.PathLike[str], length: int) -> None:
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        if size < length:
            raise ValueError(f"{path}: has {size} bytes, but the checkpoint was written after {length}")
        # A line is written through at once, so that the file can be followed while the training runs.
        self._file = FileIO(path, "ab")
        self._file.truncate(length)
        self.length = length

    def write(self, **values: Any) -> None:
        """Append one line."""
        line = json.dumps(values).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._file.name)) from error
        self.length += len(line)

    def sync(self) -> None:
        """Have all lines on the disk before a checkpoint counts on them."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._file.name)) from error

    def close(self) -> None:
        self._file.close()
