"""Processes that tests start, send signals and wait for: each has a time limit, so that none is waited for forever.

SIGINT and SIGHUP have their default dispositions there, wherever the tests were started: see `conftest.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300.0  # what tests wait for takes seconds; shared machines stall


@contextmanager
def time_limit(pid: int, seconds: float | None = None) -> Iterator[None]:
    """After `seconds`, or SECONDS, the process and those that it started are killed and the test fails."""
    seconds = SECONDS if seconds is None else seconds
    expired = threading.Event()

    def end() -> None:
        expired.set()
        for member in _family(pid):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if expired.is_set():
            pytest.fail(f"process {pid} had not ended after {seconds:g} s and was killed")


@contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """The command's process, which has ended where the block has; `options` are those of `subprocess.Popen`."""
    process = subprocess.Popen(command, **options)
    with time_limit(process.pid), process:
        yield process


@contextmanager
def started_program(code: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a Python program that has printed "ready"; its standard input is open until the block ends."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pipe = subprocess.PIPE
    with started(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process


def _family(pid: int) -> list[int]:
    """The process, its children and theirs."""
    children: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        children = [
            child for list_ in Path(f"/proc/{pid}/task").glob("*/children") for child in list_.read_text().split()
        ]
    return [pid, *(member for child in children for member in _family(int(child)))]
