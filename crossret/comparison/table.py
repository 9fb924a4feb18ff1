"""The figures of a comparison as a table, on the terminal and in Markdown: the same cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crossret.files.json import flattened
from crossret.terminal import plain

# Names of cells by heading: in Markdown, and on a terminal, eighty columns of which have no room for all.
_LONG = {
    "variant": "variant",
    "image → sentence R@1 / 5 / 10": "i2t",
    "sentence → image R@1 / 5 / 10": "t2i",
    "rsum": "rsum",
    "points right (chance)": "points",
    "parameters": "parameters",
    "training s (epochs × s)": "training",
    "scoring s (pairs/s)": "scoring",
    "peak MiB training / scoring": "memory",
}
_SHORT = {
    "variant": "variant",
    "R@1": "r1",
    "rsum": "rsum",
    "points": "right",
    "params": "parameters",
    "train s": "seconds",
    "pairs/s": "rate",
    "MiB": "peak",
}
NONE = "–"
_KINDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def comparison_table(report: Mapping[str, Any]) -> Table:
    """A row a variant, for the terminal: recall at 1 both ways, image → sentence first; the rest is in Markdown."""
    table = Table(
        title=plain(_title(report)), caption=plain(" ".join(_notes(report))), box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    longest = max((len(word) for result in report["variants"] for word in result["variant"].split()), default=0)
    table.add_column("variant", min_width=longest)
    for heading in list(_SHORT)[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in report["variants"]:
        cells = _cells(result)
        table.add_row(*(plain(cells[name]) for name in _SHORT.values()))
    return table


def check_result(result: Mapping[str, Any], place: object) -> None:
    """Raise a ValueError where what a result.json holds is no result of a variant; names the place."""
    try:
        for name, value in flattened(result).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}")
        _cells(result)
        _notes({"variants": [result]})
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{place}: not the result of a variant ({why}); remove it, to have it measured again"
        ) from error


def markdown(report: Mapping[str, Any]) -> str:
    """A row a variant, with what the figures are and where they were measured."""
    rows = [[*_LONG], ["---", *["---:"] * (len(_LONG) - 1)]]
    for result in report["variants"]:
        cells = _cells(result)
        rows.append([cells[name] for name in _LONG.values()])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    command = f"`{report['command']}`, crossret {report['crossret']}."
    return "\n".join([f"{_title(report)}.", "", *lines, "", *_notes(report), "", command, ""])


def _title(report: Mapping[str, Any]) -> str:
    data = report["data"]
    test = data[report["split"]]
    return (
        f"{test['images']:,} images and {test['captions']:,} captions of {report['split']}, "
        f"trained on {data['train']['captions']:,} captions with seed {report['seed']}"
    )


def _cells(result: Mapping[str, Any]) -> dict[str, str]:
    training, evaluation = result["training"], result["evaluation"]
    retrieval, game = evaluation["retrieval"], evaluation["pointing_game"]
    epochs, resumed = training["epochs"], "*" if training["sessions"] > 1 else ""
    seconds = f"{'' if training['seconds_known'] else '> '}{training['seconds']:,.0f}{resumed}"
    recall = {way: " / ".join(f"{retrieval[f'{way}_r{rank}']:.1f}" for rank in (1, 5, 10)) for way in ("i2t", "t2i")}
    return {
        "variant": result["variant"],
        **recall,
        "r1": f"{retrieval['i2t_r1']:.1f}/{retrieval['t2i_r1']:.1f}",
        "rsum": f"{retrieval['rsum']:.1f}",
        "right": NONE if game is None else f"{game['accuracy']:.0%} ({game['chance']:.0%})",
        "points": NONE if game is None else f"{game['map']} {game['accuracy']:.0%} ({game['chance']:.0%})",
        "parameters": _short(training["parameters"]),
        "seconds": seconds,
        "training": f"{seconds} ({epochs} × {training['seconds'] / epochs:.1f})",
        "rate": _short(evaluation["scoring"]["pairs_per_second"]),
        "scoring": f"{evaluation['scoring']['seconds']:,.1f} ({_short(evaluation['scoring']['pairs_per_second'])})",
        "peak": f"{training['peak_mebibytes']:,.0f}",
        "memory": f"{training['peak_mebibytes']:,.0f} / {evaluation['peak_mebibytes']:,.0f}",
    }


def _notes(report: Mapping[str, Any]) -> list[str]:
    results = report["variants"]
    machines = dict.fromkeys(
        f"{machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, torch {machine['torch']}"
        for machine in (result["evaluation"]["machine"] for result in results)
    )
    notes = [
        "Training includes validation after every epoch.",
        "Pairs/s: the split's images with all its captions, both encoded before.",
        "Peak: resident memory of the whole process.",
    ]
    if any(result["evaluation"]["pointing_game"] for result in results):
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
