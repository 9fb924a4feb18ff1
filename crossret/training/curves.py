"""The picture of a training: its loss and the recall on the development set."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from crossret.files.atomic import atomic_write

_FEW = 30  # points of a line that are marked


def draw_training(path: str | os.PathLike[str], log: Sequence[Mapping[str, Any]]) -> None:
    """Write ``training_figure`` as a PNG.

    Args:
        path: the file to write, atomically.
        log: lines, as there.

    Raises:
        OSError: the file cannot be written.
    """
    figure = training_figure(log)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=160)


def training_figure(log: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a training: the loss of the steps, and recall on the development set after each epoch, the best one marked.

    Args:
        log: the entries of a training's log.jsonl, in order. The best epoch is the last that was better than all before
            it by the measure that the training goes by, whichever it is.
    """
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    loss, recall = figure.subplots(1, 2)
    _draw_loss(loss, [entry for entry in log if entry["kind"] == "step"])
    _draw_recall(recall, [entry for entry in log if entry["kind"] == "epoch"])
    for panel in (loss, recall):
        panel.title.set_fontsize(10)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    return figure


def _draw_loss(panel: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    values = [entry["loss"] for entry in steps]
    panel.plot([entry["step"] for entry in steps], values, color="tab:blue", linewidth=1, **_marked(steps))
    panel.set(title="training loss of a batch", xlabel="step")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{round(step):,}"))
    panel.margins(x=0.03)
    positive = [value for value in values if value > 0]
    if not positive:
        panel.set_ylim(-0.05, 1)
        return
    # A loss of 0 has no logarithm: it is drawn at the lower end, where the line leaves the picture.
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(_log_ticks(min(positive), max(positive)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    panel.yaxis.set_minor_locator(NullLocator())


def _draw_recall(panel: Axes, epochs: Sequence[Mapping[str, Any]]) -> None:
    numbers = [entry["epoch"] for entry in epochs]
    largest = 0.0
    for way, query, colour in (("i2t", "sentence retrieval", "tab:orange"), ("t2i", "image retrieval", "tab:green")):
        for rank, style in ((1, "-"), (10, ":")):
            values = [entry[f"{way}_r{rank}"] for entry in epochs]
            panel.plot(numbers, values, style, color=colour, label=f"{query} R@{rank}", **_marked(epochs))
            largest = max(largest, *values, 0.0)
    if best := [entry["epoch"] for entry in epochs if entry["best"]]:
        panel.axvline(best[-1], color="0.4", linewidth=1, linestyle="--", zorder=0, label=f"best epoch: {best[-1]}")
    last = max(numbers, default=1)
    panel.set(title="development set after each epoch", xlabel="epoch", ylabel="recall (%)")
    panel.set(xlim=(0.5, last + 0.5), ylim=(0, max(1.0, 1.05 * largest)))
    panel.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
    panel.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    panel.figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _marked(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Marker of a line's points where they are few: a single one has no line."""
    return {"marker": "o", "markersize": 3} if len(entries) <= _FEW else {}


def _log_ticks(least: float, largest: float) -> Locator:
    """Ticks of a logarithmic axis at round numbers, a few whether the values span a part of a decade or many."""
    decades = math.log10(largest / least)
    if decades < 1:
        return MaxNLocator(6, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,), numticks=8)


def _plain(value: float) -> str:
    """A tick's value as it is read aloud; only what has very many zeros is written with a power of ten."""
    return f"{value:,.10g}" if 1e-4 <= value < 1e7 else f"{value:.3g}"
