"""The README's chart, for light and dark pages: time and memory of what people use today, and of crossret.

python -m benchmarks.chart draws it from the newest records under results/: what `make` calls once it has kept one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results import LOOP, read_results
from crossret.files.atomic import atomic_write

ROOT = Path(__file__).parents[1]
RESULTS = Path("benchmarks/results")
PICTURE = "docs/assets/speed-{}.png"
THEMES = {"light": ("#24292f", "#8c959f", "#0b5fa5"), "dark": ("#e6edf3", "#7d8590", "#58a6ff")}  # ink, theirs, ours
SCAN = {"t2i LSE training step": "SCAN t2i LSE", "i2t AVG training step": "SCAN i2t AVG"}
FUSED = "cpu "


class Bar(NamedTuple):
    """A training step of a package as it is, and with crossret."""

    name: str
    milliseconds: tuple[float, float]
    mebibytes: tuple[float, float]


def bars(root: Path) -> tuple[list[Bar], str]:
    """Figures of the newest records, and the machines they were measured on.

    Raises:
        ValueError: there is no record of one of the two.
    """
    records = [path for path in sorted((root / RESULTS).glob("*.json")) if "sources" not in _read(path)]
    peers = sorted((root / RESULTS / "peers").glob("*.json"))
    if not records or not peers:
        raise ValueError(f"{root / RESULTS}: needs a record of `make bench-record` and one of `make peers-bench`")
    results, run = read_results(records[-1]), _read(peers[-1])
    found = []
    for operation, name in SCAN.items():
        measured = [m for m in results.measurements if (m.operation, m.dtype, m.threads) == (operation, "float32", 2)]
        theirs = next(m for m in measured if m.implementation == LOOP)
        ours = min((m for m in measured if m.implementation.startswith(FUSED)), key=lambda m: m.seconds)
        steps = theirs, ours
        found.append(
            Bar(
                f"{name}\npublished loop",
                _pair(m.seconds * 1e3 for m in steps),
                _pair(m.peak_mebibytes or 0.0 for m in steps),
            )
        )
    for own in run["measurements"]:
        if own["task"] == "training step" and own["dtype"] == "float32":
            steps = own["theirs"], own["ours"]
            times, sizes = (_pair(step[unit] for step in steps) for unit in ("milliseconds", "mebibytes"))
            found.append(Bar(f"MaxSim\n{own['package']} {own['version']}", times, sizes))
    machine = run["machine"]
    return found, f"{machine['cpu']}, {machine['threads']} threads, float32; {results.date} and {run['date']}"


def draw(root: Path) -> list[Path]:
    """Writes both pictures; returns where."""
    found, where = bars(root)
    written = []
    for theme, (ink, theirs, ours) in THEMES.items():
        figure = Figure(figsize=(8.4, 0.62 * len(found) + 1.1), dpi=160, layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        _panel(
            panels[0],
            [bar.milliseconds for bar in found],
            "one training step, ms (log scale)",
            "faster",
            ink,
            theirs,
            ours,
        )
        sizes = [bar.mebibytes for bar in found]
        _panel(panels[1], sizes, "memory beside inputs and results, MiB (log scale)", "less", ink, theirs, ours)
        panels[0].set_yticks(range(len(found)), [bar.name for bar in found], fontsize=8.5)
        panels[0].invert_yaxis()
        handles = panels[0].containers[:2]
        legend = figure.legend(
            handles, ["as it is", "with crossret"], loc="outside upper left", ncols=2, frameon=False, fontsize=9
        )
        figure.supxlabel(where, fontsize=7.5, color=theirs)
        for text in legend.get_texts():
            text.set_color(ink)
        path = root / PICTURE.format(theme)
        with atomic_write(path) as file:
            figure.savefig(file, format="png", transparent=True)
        written.append(path)
    return written


def _panel(
    axes: Axes, values: list[tuple[float, float]], title: str, gain: str, ink: str, theirs: str, ours: str
) -> None:
    places = range(len(values))
    for side, colour, shift in ((0, theirs, -0.2), (1, ours, 0.2)):
        axes.barh([place + shift for place in places], [value[side] for value in values], 0.36, color=colour)
    for place, (before, after) in zip(places, values, strict=True):
        axes.text(before, place - 0.2, f" {_short(before)}", va="center", fontsize=8, color=ink)
        text = f" {_short(after)}   {before / after:.0f} × {gain}"
        axes.text(after, place + 0.2, text, va="center", fontsize=8, color=ours)
    axes.set_xscale("log")
    axes.set_xlim(1, 4 * max(max(value) for value in values))
    axes.set_title(title, fontsize=9.5, color=ink, loc="left")
    axes.tick_params(colors=ink, labelsize=8, length=0, which="both")
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xticks([])
    axes.minorticks_off()


def _pair(values: Any) -> tuple[float, float]:
    theirs, ours = values
    return float(theirs), float(ours)


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.1f}"


def _read(path: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return contents


if __name__ == "__main__":
    for path in draw(ROOT):
        print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
