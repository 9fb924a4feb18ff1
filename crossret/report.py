"""How figures are shown and kept: tables on the terminal, JSON files, the machine that they were measured on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from crossret.evaluation import RetrievalMetrics
from crossret.explain import PointingGame
from crossret.files import atomic_write
from crossret.json_files import parse_json_object

_SHOWN_QUERIES = 10  # of a search: the rest is for the file of results


def retrieval_table(metrics: RetrievalMetrics, title: str) -> Table:
    """Recall at 1, 5 and 10 in percent, median and mean rank, both ways; their sums below."""
    table = Table(title=escape(title), caption=f"rsum {metrics.rsum:.1f}   mR {metrics.mr:.1f}", caption_style="bold")
    table.add_column("query → retrieved")
    for heading in ("R@1", "R@5", "R@10", "medr", "meanr"):
        table.add_column(heading, justify="right")
    for name, way in (("image → sentence", metrics.i2t), ("sentence → image", metrics.t2i)):
        table.add_row(name, f"{way.r1:.1f}", f"{way.r5:.1f}", f"{way.r10:.1f}", f"{way.medr:.0f}", f"{way.meanr:.1f}")
    return table


def pointing_table(games: Sequence[PointingGame], title: str) -> Table:
    """How often what attends points at what the captions name, by both rules, in percent; a section a map."""
    table = Table(title=escape(title), caption="the strongest region against the objects that captions name")
    for heading in ("attention", "query"):
        table.add_column(heading, overflow="fold")
    for heading in ("asked", "overlaps", "by chance", "centre inside", "by chance"):
        table.add_column(heading, justify="right", overflow="fold", min_width=5)
    last = None
    for game in games:
        if game.map != last:
            table.add_section()
        shares = (game.accuracy, game.chance, game.centre_accuracy, game.centre_chance)
        table.add_row(
            "" if game.map == last else game.map, game.query, f"{game.asked:,}", *(f"{share:.1%}" for share in shares)
        )
        last = game.map
    return table


def results_table(found: Sequence[dict[str, Any]], title: str) -> Table:
    """What a search found, as ``crossret.retrieval.ranked`` gives it: the results of the first queries."""
    hidden = len(found) - _SHOWN_QUERIES
    caption = f"… and the results of {hidden:,} more queries" if hidden > 0 else None
    table = Table(title=escape(title), caption=caption)
    table.add_column("query")
    for heading in ("rank", "index", "score"):
        table.add_column(heading, justify="right")
    described = any(result.keys() & {"caption", "captions"} for entry in found for result in entry["results"])
    if described:
        table.add_column("caption")
    for entry in found[:_SHOWN_QUERIES]:
        label = entry.get("caption") or (f"image {entry['image']}" if "image" in entry else str(entry["query"]))
        for result in entry["results"]:
            text = result.get("caption") or next(iter(result.get("captions", [])), "")
            cells = [escape(label), str(result["rank"]), str(result["index"]), f"{result['score']:.4f}"]
            table.add_row(*cells, *([escape(text)] if described else []))
            label = ""
        table.add_section()
    return table


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error if that is a terminal, gone at the end; call what it gives with (done, all)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def write_json(path: str | os.PathLike[str], contents: object) -> None:
    """Write JSON for people and programs, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(json.dumps(contents, indent=2, ensure_ascii=False).encode() + b"\n")


def write_json_lines(path: str | os.PathLike[str], entries: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(path) as file:
        for entry in entries:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read one JSON object a line, as a training's log.jsonl has them.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a JSON object; names the file and the line.
    """
    entries = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        entries.append(parse_json_object(line, f"{path}, line {number}"))
    return entries


def describe_machine() -> dict[str, str | int]:
    """What a measured figure depends on: CPU model, cores of this process, torch's threads, versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    facts: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts.get("model name") or platform.processor() or platform.machine()
