"""The log of a training: one JSON object a line, and the same for programs that read something else."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TextIO

from crossret.files.json import parse_json_object
from crossret.files.naming import named_errors
from crossret.files.regular import LARGEST_LINES, read_regular

# Of a line of steps, beside the terms of the loss.
STEP_FIELDS = ("kind", "epoch", "step", "learning_rate", "gradient_norm")

# Of a line of epochs, beside its loss and other figures.
EPOCH_FIELDS = ("kind", "epoch", "step", "best", "i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10")

Entry = Mapping[str, Any]


class TrainingLog:
    """Appends lines to a file that is cut back to a known length first.

    A line holds nothing that differs between two runs of the same training, so that their logs are the same bytes.

    Args:
        path: the log.
        length: bytes to keep; 0 begins a new log.

    Attributes:
        entries: all lines, those kept included.
        length: bytes so far.

    Raises:
        ValueError: the log is shorter than ``length``: it is not the one that the checkpoint knows; or a kept line is
            no JSON object, named with its number.
    """

    def __init__(self, path: str | os.PathLike[str], length: int) -> None:
        kept = read_regular(path, LARGEST_LINES)[:length] if length and Path(path).is_file() else b""
        if len(kept) < length:
            raise ValueError(f"{path}: has {len(kept)} bytes, but the checkpoint was written after {length}")
        self.entries: list[Entry] = [
            _entry(line, f"{path}, line {number}") for number, line in enumerate(kept.splitlines(), start=1)
        ]
        # A line is written through at once, so that the file can be followed while the training runs.
        self._path = path
        self._file = FileIO(path, "ab")
        with named_errors(path):
            self._file.truncate(length)
        self.length = length

    def write(self, entry: Entry) -> None:
        """Append one line."""
        line = json.dumps(entry).encode() + b"\n"
        with named_errors(self._path):
            self._file.write(line)
        self.entries.append(entry)
        self.length += len(line)

    def sync(self) -> None:
        """Have all lines on the disk before a checkpoint counts on them."""
        with named_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _entry(line: bytes, place: str) -> Entry:
    """A line as this training wrote it, which others may have changed since."""
    entry = parse_json_object(line, place)
    fields = {"step": STEP_FIELDS, "epoch": EPOCH_FIELDS}.get(str(entry.get("kind")), ("kind",))
    for name in (*fields, "loss"):
        if name not in entry:
            raise ValueError(f"{place}: not a line of a training's log: it has no {name!r}")
    for name, value in entry.items():
        if name != "kind" and not isinstance(value, (int, float)):
            raise ValueError(f"{place}: not a line of a training's log: its {name} is {value!r}")
    if entry["kind"] not in ("step", "epoch"):
        raise ValueError(f"{place}: not a line of a training's log: its kind is {entry['kind']!r}")
    return entry


class Follower(Protocol):
    """What gets every entry of a log, too, in a form of its own."""

    def write(self, entry: Entry, captions_per_second: float) -> None: ...

    def close(self) -> None: ...


class CsvFollower:
    """Two tables beside a log, as spreadsheets read them: steps.csv and epochs.csv, a column a field.

    They are made anew from the entries that there are, so that they always hold what the log holds.
    """

    def __init__(self, directory: Path, entries: Sequence[Entry]) -> None:
        self._directory = directory
        self._files: dict[str, TextIO] = {}
        self._writers: dict[str, csv.DictWriter[str]] = {}
        for kind in ("step", "epoch"):
            self._path(kind).unlink(missing_ok=True)
        for entry in entries:
            self.write(entry, 0.0)

    def write(self, entry: Entry, captions_per_second: float) -> None:
        kind, values = entry["kind"], {name: value for name, value in entry.items() if name != "kind"}
        with named_errors(self._path(kind)):
            if kind not in self._writers:  # only an entry tells the terms of the loss
                self._files[kind] = open(self._path(kind), "w", newline="", encoding="utf-8")  # noqa: SIM115
                self._writers[kind] = csv.DictWriter(self._files[kind], list(values))
                self._writers[kind].writeheader()
            self._writers[kind].writerow(values)
            self._files[kind].flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _path(self, kind: str) -> Path:
        return self._directory / f"{kind}s.csv"


class TensorBoardFollower:
    """Event files under tensorboard/, which TensorBoard shows: fields of steps by "train/…", of epochs by "dev/…".

    Args:
        directory: of the training; several of them are compared by pointing TensorBoard at their parent.
        step: where the training goes on; what an earlier process showed beyond is hidden.

    Raises:
        ValueError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f"TensorBoard is not installed: pip install 'crossret[tensorboard]' ({error})") from error
        self._directory = directory / "tensorboard"
        with named_errors(self._directory):
            self._writer: Any = SummaryWriter(str(self._directory), purge_step=step + 1)

    def write(self, entry: Entry, captions_per_second: float) -> None:
        group = "train" if entry["kind"] == "step" else "dev"
        figures = {name: value for name, value in entry.items() if name not in ("kind", "epoch", "step", "best")}
        if group == "train":
            figures["captions_per_second"] = captions_per_second
        with named_errors(self._directory):
            for name, value in figures.items():
                self._writer.add_scalar(f"{group}/{name}", value, entry["step"])

    def close(self) -> None:
        with named_errors(self._directory):
            self._writer.close()
