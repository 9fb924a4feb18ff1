"""The plot of a run: pairs a second against batch size, a line an implementation, the floor beside them."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.results import PRODUCT, Measurement, Results
from benchmarks.tables import describe
from crossret.files.atomic import atomic_write

OPERATION = "t2i LSE, by batch size"
FUSED = "cpu "
FLOOR = "floor"
INK, MUTED, RED = "#222222", "#7b818b", "#b3452c"
COLOURS = ("#5b7fa6", "#7a9a5b", "#a6795b", "#8a6fa8", "#4d9a97")
STRONG = "#0b5fa5"
APART = 0.055  # share of the axis' height between the names of lines that end together
NAMES = {
    FLOOR: "the floor",
    PRODUCT: "torch.mm: the product alone",
    "torch": "backend torch",
    "loop": "per-caption loop",
}


def plot_batch_sizes(results: Results, path: Path) -> None:
    """Writes the plot as a PNG.

    Raises:
        ValueError: the run has no measurement by batch size.
    """
    measurements = [m for m in results.measurements if m.operation == OPERATION and m.pairs]
    if not measurements:
        raise ValueError(f"the run has no measurement of {OPERATION!r}: nothing to plot")
    figure = Figure(figsize=(8.4, 5.0), dpi=160)
    axes = figure.add_axes((0.085, 0.105, 0.665, 0.725))
    lines = {FLOOR: _line(measurements, floor=True)}
    for name in dict.fromkeys(m.implementation for m in measurements):
        lines[name] = _line([m for m in measurements if m.implementation == name])
    plain = iter(COLOURS * len(lines))
    styles = {name: _style(name, plain) for name in lines}
    for name, (sizes, rates) in lines.items():
        axes.plot(sizes, rates, **styles[name])
    _dress(axes, measurements)
    _name_lines(axes, lines, {name: str(style["color"]) for name, style in styles.items()})
    figure.text(0.02, 0.945, "Pairs scored a second", color=INK, fontsize=13.5, fontweight="bold")
    subject = f"SCAN t2i LSE, {measurements[0].shape}, {measurements[0].dtype}, {measurements[0].threads} threads"
    figure.text(0.02, 0.905, subject, color=MUTED, fontsize=9)
    figure.text(0.02, 0.87, describe(results), color=MUTED, fontsize=9)
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def _line(measurements: list[Measurement], floor: bool = False) -> tuple[list[int], list[float]]:
    """Pairs of the batch, pairs a second; of the floor the highest of every batch, as it is a bound."""
    rates: dict[int, float] = {}
    for m in measurements:
        seconds = m.floor_seconds if floor else m.seconds
        if m.pairs and seconds:
            rates[m.images * m.captions] = max(rates.get(m.images * m.captions, 0.0), m.pairs / seconds)
    sizes = sorted(rates)
    return sizes, [rates[size] for size in sizes]


def _style(name: str, plain: object) -> dict[str, object]:
    if name == FLOOR:
        return {"color": RED, "linestyle": (0, (5, 3)), "linewidth": 1.6}
    if name.startswith(FUSED):
        return {"color": STRONG, "linewidth": 2.8, "marker": "o", "markersize": 6, "zorder": 5}
    if name == PRODUCT:
        return {"color": MUTED, "linestyle": (0, (1, 1.5)), "linewidth": 1.6, "marker": "o", "markersize": 3.5}
    return {"color": next(plain), "linewidth": 1.6, "marker": "o", "markersize": 3.5}


def _dress(axes: Axes, measurements: list[Measurement]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    batches = {m.images * m.captions: f"{m.images:,} × {m.captions:,}" for m in measurements}
    axes.set_xticks(list(batches), labels=list(batches.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    axes.set_xlabel("images × captions in a call", color=MUTED, fontsize=9)
    axes.grid(axis="y", which="major", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=0, which="both")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c9ccd1")


def _name_lines(axes: Axes, lines: dict[str, tuple[list[int], list[float]]], colours: dict[str, str]) -> None:
    """Every line's name in the right margin, where no line runs, with a leader from its last point."""
    ends = {name: (sizes[-1], rates[-1]) for name, (sizes, rates) in lines.items()}
    names = sorted(ends, key=lambda name: -ends[name][1])
    to_fraction = axes.transData + axes.transAxes.inverted()
    places = [float(to_fraction.transform(ends[name])[1]) for name in names]
    for i in range(1, len(names)):
        places[i] = min(places[i], places[i - 1] - APART)
    for i in reversed(range(len(names))):  # and up again from the bottom of the axis
        places[i] = max(places[i], (len(names) - 1 - i) * APART)
    for name, place in zip(names, places, strict=True):
        axes.annotate(
            NAMES.get(name, name),
            xy=ends[name],
            xytext=(1.025, place),
            textcoords="axes fraction",
            color=colours[name],
            fontsize=9.5,
            fontweight="bold" if name.startswith(FUSED) else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours[name], "linewidth": 0.7, "alpha": 0.6, "shrinkB": 4},
        )
