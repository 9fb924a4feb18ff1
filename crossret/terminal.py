"""Tables and progress on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import markup
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from crossret.evaluation import RetrievalMetrics
from crossret.explain.pointing import PointingGame
from crossret.files.unicode import printable, shortened
from crossret.progress import ProgressLines

_SHOWN_QUERIES = 10  # the file of results has the rest


def plain(text: str) -> str:
    """A text of others, such as a path or a caption, as rich prints it: no markup, nothing that a terminal obeys."""
    return markup.escape(printable(text))


def retrieval_table(metrics: RetrievalMetrics, title: str) -> Table:
    """Recall at 1, 5 and 10 in percent, median and mean rank, both ways; their sums below."""
    table = Table(title=plain(title), caption=f"rsum {metrics.rsum:.1f}   mR {metrics.mr:.1f}", caption_style="bold")
    table.add_column("query → retrieved")
    for heading in ("R@1", "R@5", "R@10", "medr", "meanr"):
        table.add_column(heading, justify="right")
    for name, way in (("image → sentence", metrics.i2t), ("sentence → image", metrics.t2i)):
        table.add_row(name, f"{way.r1:.1f}", f"{way.r5:.1f}", f"{way.r10:.1f}", f"{way.medr:.0f}", f"{way.meanr:.1f}")
    return table


def figures_table(figures: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """Figures by name, "i2t" and "t2i" of each."""
    table = Table(title=plain(title))
    for heading in ("", "image → sentence", "sentence → image"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, ways in figures.items():
        table.add_row(name, f"{ways['i2t']:.1f}", f"{ways['t2i']:.1f}")
    return table


def pointing_table(games: Sequence[PointingGame], title: str) -> Table:
    """How often what attends points at what the captions name, by both rules, in percent; a section a map."""
    table = Table(title=plain(title), caption="the strongest region against the objects that captions name")
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


def results_table(found: Sequence[dict[str, Any]], title: str, item: str) -> Table:
    """Results of a search's first queries; ``found`` is as ``crossret.search.retrieval.ranked`` gives it.

    ``item`` is the name of one item of the corpus.
    """
    hidden = len(found) - _SHOWN_QUERIES
    caption = f"… and the results of {hidden:,} more queries" if hidden > 0 else None
    table = Table(title=plain(title), caption=caption)
    table.add_column("query")
    for heading in ("rank", "number" if item == "picture" else item, "score"):
        table.add_column(heading, justify="right")
    results = [result for entry in found for result in entry["results"]]
    described = any(result.keys() & {"caption", "captions"} for result in results)
    name = next((name for name in ("id", "picture") if any(name in result for result in results)), None)
    if name is not None:
        table.add_column(name, overflow="fold")
    if described:
        table.add_column("text")
    for entry in found[:_SHOWN_QUERIES]:
        label = entry.get("caption") or (f"image {entry['image']}" if "image" in entry else str(entry["query"]))
        for result in entry["results"]:
            text = result.get("caption") or next(iter(result.get("captions", [])), "")
            cells = [plain(shortened(label)), str(result["rank"]), str(result["index"]), f"{result['score']:.4f}"]
            cells += [plain(result.get(name, ""))] if name is not None else []
            table.add_row(*cells, *([plain(shortened(text))] if described else []))
            label = ""
        if not entry["results"]:
            table.add_row(plain(label), "none")
        table.add_section()
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Facts by name, a line each."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(name, plain(fact))
    return table


@contextmanager
def progress_bar(
    text: str, *, speed: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error if that is a terminal, gone at the end, else lines; call what it gives with (done, all).

    The lines are those of ``ProgressLines``: what takes less than half a minute has none. With ``speed`` either says
    how many are done a second, and the first call tells what was done before and took none of the time.
    """
    console = Console(stderr=True)
    began: list[tuple[int, float]] = []

    def rate() -> str:
        if not speed or not began or lines.done == began[0][0]:
            return ""
        return f"{(lines.done - began[0][0]) / max(clock() - began[0][1], 1e-9):,.1f}/s"

    def describe() -> str:
        how_far = text if lines.total is None else f"{text}  {lines.done:,}/{lines.total:,}"
        return "  ".join([how_far, *filter(None, [rate()])])

    lines = ProgressLines(describe, enabled=not console.is_terminal, clock=clock)
    columns = [*Progress.get_default_columns(), *([TextColumn("{task.fields[rate]}")] if speed else [])]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress, lines:
        task = progress.add_task(text, total=None, rate="")

        def show(done: int, total: int) -> None:
            if speed and not began:
                began.append((done, clock()))
                lines.begin(done)
                progress.reset(task, completed=done, total=total)
            lines.update(done, total)
            progress.update(task, completed=done, total=total, rate=rate())

        yield show
