"""Keeping what a benchmark found: a file for programs and a table for people, named by the day and the processor."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crossret.files.atomic import atomic_write
from crossret.files.json import write_json
from crossret.machine import describe_machine


def heading(found: dict[str, Any]) -> str:
    """Machine, threads and date of a record of so many `threads`."""
    threads = found["threads"]
    return f"{found['machine']['cpu']}, {threads} thread{'s'[: threads > 1]}, {found['date']}"


def keep_record(directory: Path, found: dict[str, Any], table: Callable[[dict[str, Any]], str], **more: str) -> None:
    """Write the figures found, with the date and the machine, as .json and by ``table`` as .md; and print that.

    ``more`` is what else the machine is told by.
    """
    date, machine = datetime.date.today().isoformat(), {**describe_machine(), **more}
    record = {"date": date, "machine": machine, **found}
    stem = f"{date}-{re.sub(r'[^a-z0-9]+', '-', str(machine['cpu']).lower()).strip('-')}"
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / f"{stem}.json", record)
    with atomic_write(directory / f"{stem}.md") as file:
        file.write(table(record).encode())
    print(table(record))
