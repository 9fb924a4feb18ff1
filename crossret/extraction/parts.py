"""Finished part of a long extraction: rows appended to files, and a journal by which the next process goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import write_rows
from crossret.files.features import OFFSETS
from crossret.files.json import parse_json_object
from crossret.files.naming import named_errors
from crossret.files.regular import LARGEST_LINES, read_regular

_HEADER = 128  # bytes that a .npy file's header takes here, whatever its shape
_JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Column:
    """Rows of numbers.

    Attributes:
        width: of a row.
        dtype: as the .npy format spells it: "<f4".
    """

    width: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


def is_begun(directory: Path) -> bool:
    """Whether a part in this directory has anything in its journal."""
    journal = directory / _JOURNAL
    return journal.exists() and os.path.getsize(journal) > 0


class Part:
    """Rows of items by columns, of which a batch is either in the journal, with all its rows on the disk, or not done.

    Args:
        directory: holds the part alone; made if it is absent.
        columns: columns by name; ``NAME.npy`` holds the rows of all items, one after another, until they are taken.

    Attributes:
        done: how many items of those that there are to do were looked at.
        lengths: rows of each item that was written.
        left_out: indices of items that were not written.

    Raises:
        OSError: the directory cannot be made or read.
        ValueError: the journal is malformed, or longer than the files; names the directory, which is to be removed.
    """

    def __init__(self, directory: Path, columns: Mapping[str, Column]) -> None:
        self.directory = directory
        self.columns = columns
        self.done = 0
        self.lengths: list[int] = []
        self.left_out: list[int] = []
        self._files: dict[str, BinaryIO] = {}
        self._journal: BinaryIO | None = None
        directory.mkdir(exist_ok=True)
        kept = 0
        if (directory / _JOURNAL).exists():
            kept = self._read_journal(read_regular(directory / _JOURNAL, LARGEST_LINES))
        self._kept = kept

    @contextmanager
    def appending(self) -> Iterator[None]:
        """The block may ``append``. What was written without being in the journal is cut off first."""
        rows = sum(self.lengths)
        with ExitStack() as files:
            for name, column in self.columns.items():
                file = files.enter_context(_opened(self._path(name)))
                file.truncate(_HEADER + rows * column.row_bytes)
                file.seek(0, os.SEEK_END)
                self._files[name] = file
            self._journal = files.enter_context(_opened(self.directory / _JOURNAL))
            self._journal.truncate(self._kept)
            self._journal.seek(0, os.SEEK_END)
            try:
                yield
            finally:
                self._files, self._journal = {}, None

    def append(
        self, done: int, lengths: Sequence[int], rows: Mapping[str, NDArray[Any]], left_out: Sequence[int] = ()
    ) -> None:
        """Write the next items: the rows of each column on the disk first, then the line of the journal.

        Args:
            done: how many of all items are done with these.
            lengths: rows of each, in all as many as ``rows`` of every column has.
            rows: (rows, width) by column.
            left_out: indices of the items among these that are not written.
        """
        assert self._journal is not None
        for name, file in self._files.items():
            column = self.columns[name]
            assert rows[name].shape == (sum(lengths), column.width)
            with named_errors(self._path(name)):
                file.write(np.ascontiguousarray(rows[name], column.dtype).data)
                _flush(file)
        entry = {"done": done, "lengths": list(lengths), "left_out": list(left_out)}
        with named_errors(self.directory / _JOURNAL):
            self._journal.write(json.dumps(entry).encode() + b"\n")
            _flush(self._journal)
        self._kept = self._journal.tell()
        self._take(entry)

    def write_padded(self, name: str, path: Path) -> None:
        """Write a column as ``path``: (items, most rows, width), zeros behind the rows of an item that has fewer."""
        column, most = self.columns[name], max(self.lengths)
        rows = np.memmap(self._path(name), column.dtype, "r", offset=_HEADER, shape=(sum(self.lengths), column.width))
        with write_rows(path, (most, column.width), column.dtype) as write:
            first = 0
            for length in self.lengths:
                padded = np.zeros((1, most, column.width), column.dtype)
                padded[0, :length] = rows[first : first + length]
                write(padded)
                first += length

    def take_padded(self, name: str, path: Path) -> None:
        """Write as ``write_padded``; where all items have as many rows nothing is copied, and the column is gone."""
        if min(self.lengths) < max(self.lengths):
            self.write_padded(name, path)
            return
        self._write_header(name, (len(self.lengths), self.lengths[0], self.columns[name].width))
        os.replace(self._path(name), path)

    def become_corpus(self, directory: Path) -> None:
        """Make of the part a directory of packed items: a file a column, of which one is "values", and offsets.npy."""
        for name, column in self.columns.items():
            self._write_header(name, (sum(self.lengths), column.width))
        with write_rows(self.directory / OFFSETS, (), "<i8") as write:
            write(np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)]))
        (self.directory / _JOURNAL).unlink()
        os.replace(self.directory, directory)

    def _write_header(self, name: str, shape: tuple[int, ...]) -> None:
        with open(self._path(name), "r+b") as file:
            file.write(_header(shape, self.columns[name].dtype))
            _flush(file)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.npy"

    def _read_journal(self, text: bytes) -> int:
        """Take what whole lines say; how many bytes they have. A line that a killed process began is not done."""
        whole = text[: text.rfind(b"\n") + 1]
        place = f"{self.directory / _JOURNAL}"
        for number, line in enumerate(whole.splitlines(), start=1):
            entry = parse_json_object(line, f"{place}, line {number}")
            if not _is_entry(entry) or entry["done"] < self.done:
                raise ValueError(f"{place}, line {number}: damaged; remove {self.directory}")
            self._take(entry)
        rows = sum(self.lengths)
        for name, column in self.columns.items():
            size = os.path.getsize(self._path(name)) if self._path(name).exists() else 0
            if rows and size < _HEADER + rows * column.row_bytes:
                raise ValueError(f"{self._path(name)}: has fewer rows than {place} says; remove {self.directory}")
        return len(whole)

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.done = entry["done"]
        self.lengths += entry["lengths"]
        self.left_out += entry["left_out"]


def _is_entry(entry: Mapping[str, Any]) -> bool:
    numbers = [entry.get("done"), *_list(entry.get("lengths")), *_list(entry.get("left_out"))]
    return all(isinstance(number, int) and 0 <= number < 2**40 for number in numbers) and 0 not in entry["lengths"]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _opened(path: Path) -> BinaryIO:
    """Open a file to read and write, without cutting what is there."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The header of a .npy file of version 1.0, padded to its size here."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return prefix + text.ljust(_HEADER - 11).encode() + b"\n"
