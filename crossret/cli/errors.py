"""Errors of a command: one line on standard error, and an exit code where it cannot go on."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO

from crossret import signals
from crossret.files.unicode import printable, shortened

_LONGEST_LINE = 1000  # characters


class Interrupted(Exception):
    """Ctrl-C, or a signal that counts as one, in a command that can say what it leaves."""


def fail(message: str, status: int = 2) -> NoReturn:
    """Say what is wrong and exit."""
    with suppress(OSError):  # a terminal that is gone
        print("crossret:", one_line(message), file=sys.stderr)
    sys.exit(status)


def one_line(message: str) -> str:
    """A message as ``printable``, in one line, of which a terminal makes a few."""
    return shortened(printable(" ".join(message.split())), _LONGEST_LINE)


class _Lines(logging.Handler):
    """Records as lines on standard error, as everything else that is told there."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            print("crossret:", one_line(record.getMessage()), file=sys.stderr)


@contextmanager
def logged(level: int) -> Iterator[None]:
    """Print the library's log records, from this level on, as lines; the root logger is left alone."""
    handler, logger = _Lines(), logging.getLogger("crossret")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def fail_interrupted(left: str | None = None) -> NoReturn:
    """Say what ended the command and perhaps what it left, and exit as a shell reports it."""
    fail(f"{signals.what_happened()}; {left}" if left else signals.what_happened(), signals.exit_status())


def refuse(options: dict[str, Any], why: str) -> None:
    """Raise a ValueError that names the first option that was given and says why it must not be."""
    for name, value in options.items():
        if value not in (None, False, []):
            raise ValueError(f"--{name.replace('_', '-')} {why}")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings meant for users become lines on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _show_warning
        yield


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line without the place in the code, instead of ``warnings.showwarning``."""
    print("crossret: warning:", one_line(str(message)), file=sys.stderr)
