"""The figures of a comparison as a table, on the terminal and in Markdown: the same cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crossret.terminal import plain

# Columns in Markdown; on a terminal, whose eighty characters have no room for all; and of both.
_LONG = (
    "variant",
    "image → sentence R@1 / 5 / 10",
    "sentence → image R@1 / 5 / 10",
    "rsum",
    "points right (chance)",
    "parameters",
    "training s (epochs × s)",
    "scoring s (pairs/s)",
    "peak MiB training / scoring",
)
_SHORT = ("variant", "R@1", "rsum", "points", "parameters", "train s", "pairs/s", "MiB")
_KINDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def comparison_table(report: Mapping[str, Any]) -> Table:
    """A row a variant, for the terminal: recall at 1 both ways, image → sentence first; the rest is in Markdown."""
    caption = " ".join(_notes(report))
    table = Table(title=plain(_title(report)), caption=plain(caption), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    longest = max((len(word) for result in report["variants"] for word in result["variant"].split()), default=0)
    table.add_column("variant", min_width=longest)
    for heading in _SHORT[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in report["variants"]:
        cells = cells_of(result)
        table.add_row(*(plain(cells[name]) for name in _SHORT))
    return table


def markdown(report: Mapping[str, Any]) -> str:
    """A row a variant, with what the figures are and where they were measured."""
    rows = [[*_LONG], ["---", *["---:"] * (len(_LONG) - 1)]]
    rows += [[cells_of(result)[name] for name in _LONG] for result in report["variants"]]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    command = f"`{report['command']}`, crossret {report['crossret']}."
    return "\n".join([f"{_title(report)}.", "", *lines, "", *_notes(report), "", command, ""])


def cells_of(result: Mapping[str, Any]) -> dict[str, str]:
    """A variant's figures as text, by heading."""
    training, evaluation = result["training"], result["evaluation"]
    (model,), peak, games = evaluation["models"], training["peak_mebibytes"], _judged(result)
    epochs, resumed = training["epochs"], "*" if training["sessions"] > 1 else ""
    seconds = f"{'' if training['seconds_known'] else '> '}{training['seconds']:,.0f}{resumed}"
    recall = [" / ".join(f"{evaluation[f'{way}_r{rank}']:.1f}" for rank in (1, 5, 10)) for way in ("i2t", "t2i")]
    right = f"{games[-1]['accuracy']:.0%} ({games[-1]['chance']:.0%})" if games else "–"
    most, rate = "–" if peak is None else f"{peak:,.0f}", _short(model["pairs_per_second"])
    long = (
        result["variant"],
        *recall,
        f"{evaluation['rsum']:.1f}",
        f"{games[-1]['map']} {right}" if games else right,
        _short(model["parameters"]),
        f"{seconds} ({epochs} × {training['seconds'] / epochs:.1f})",
        f"{model['scoring_seconds']:,.1f} ({rate})",
        f"{most} / {evaluation['peak_mebibytes']:,.0f}",
    )
    short = {"R@1": f"{evaluation['i2t_r1']:.1f}/{evaluation['t2i_r1']:.1f}", "points": right, "train s": seconds}
    return {**dict(zip(_LONG, long, strict=True)), **short, "pairs/s": rate, "MiB": most}


def _judged(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The games of the first map, by which a model is judged; what stands for all of its queries comes last."""
    games = result["evaluation"]["models"][0].get("pointing_game") or []
    return [game for game in games if game["map"] == games[0]["map"]]


def _title(report: Mapping[str, Any]) -> str:
    test, train = report["data"][report["split"]], report["data"]["train"]
    of_test = f"{test['images']:,} images and {test['captions']:,} captions of {report['split']}"
    return f"{of_test}, trained on {train['captions']:,} captions with seed {report['seed']}"


def _notes(report: Mapping[str, Any]) -> list[str]:
    results = report["variants"]
    machines = dict.fromkeys(
        f"{machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, torch {machine['torch']}"
        for machine in (result["evaluation"]["machine"] for result in results)
    )
    notes = [
        "Training: seconds of its process, with validation after every epoch.",
        "Pairs/s: the split's images with all its captions, both encoded before.",
        "Peak: resident memory of the whole process.",
    ]
    if any(map(_judged, results)):
        notes.append(
            "Points right: a word's strongest region overlaps the object that it names, or a head's or step's any "
            "object that the caption names."
        )
    if any(result["training"]["sessions"] > 1 for result in results):
        notes.append("*: interrupted; the seconds of all its parts, > where some are not known.")
    return [*notes, f"{'; '.join(machines)}."]


def _short(number: float) -> str:
    """Three digits and a letter: 1.23 M."""
    for size, letter in _KINDS:
        if number >= size:
            value = number / size
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {letter}"
    return f"{number:.0f}"
