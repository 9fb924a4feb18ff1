"""What figures look like on the terminal: tables and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from crossret.evaluation import RetrievalMetrics
from crossret.explain.pointing import PointingGame

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
    """What a search found, as ``crossret.search.retrieval.ranked`` gives it: the results of the first queries."""
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


def facts_table(facts: Mapping[str, str]) -> Table:
    """Facts by name, a line each."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(name, escape(fact))
    return table


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error if that is a terminal, gone at the end; call what it gives with (done, all)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
