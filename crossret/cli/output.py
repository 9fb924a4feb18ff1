"""Standard output, whose errors name it as those of a file name the file."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer

from crossret.files.naming import named_errors
from crossret.files.unicode import printable


def say(text: str) -> None:
    """Print a line, whatever names are in it."""
    typer.echo(printable(text))


class _StandardOutput(io.FileIO):
    failed = False

    def write(self, data: Any) -> int:
        if self.failed:  # told once: what a buffer still holds would fail again when the interpreter ends
            return len(data)
        try:
            with named_errors("standard output"):
                return super().write(data)
        except OSError:
            self.failed = len(data) > 0  # typer writes nothing, and ignores the error, to see what it writes to
            raise


def name_standard_output() -> None:
    """Have errors of what is printed from now on name standard output, if that is a file, a terminal or a pipe."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    buffered = isinstance(stream.buffer, io.BufferedWriter)  # but not with PYTHONUNBUFFERED
    if not isinstance(stream.buffer.raw if buffered else stream.buffer, io.FileIO):
        return
    stream.flush()
    raw = _StandardOutput(stream.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw) if buffered else raw,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
