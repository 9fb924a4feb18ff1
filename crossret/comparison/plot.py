"""The picture of a comparison: R@1 both ways by variant, beside the seconds of its training."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from crossret.files.atomic import atomic_write

_WIDTH = 7.6  # inches: a page's text, so that letters have their size in print
_BAR, _LINE, _SPACE = 0.16, 0.13, 0.1  # inches: of a bar, of a line of a name, between variants
_FRAME = 1.0  # inches: titles, axes and legend
_NAME = 34  # characters of a line
_ROOM = 1.25  # of the longest bar, for the number at its end
_WAYS = (("i2t", "sentence retrieval", "tab:orange", -1), ("t2i", "image retrieval", "tab:green", 1))


def draw_comparison(path: str | os.PathLike[str], results: Sequence[Mapping[str, Any]]) -> None:
    """Write ``comparison_figure`` as a PNG.

    Args:
        path: the file to write, atomically.
        results: as there.

    Raises:
        OSError: the file cannot be written.
    """
    figure = comparison_figure(results)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=160)


def comparison_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw bars, a row a variant, the first on top, as high as its name takes; each axis is as long as its bars.

    Args:
        results: of ``run_comparison``, each as its result.json holds it; at least one.
    """
    names = [textwrap.fill(result["variant"], _NAME, break_on_hyphens=False) for result in results]
    heights = [max(2 * _BAR, _LINE * (1 + name.count("\n"))) + _SPACE for name in names]
    ends = np.cumsum(heights)
    places = ends - np.array(heights) / 2  # inches from the top
    figure = Figure(figsize=(_WIDTH, _FRAME + ends[-1]), layout="constrained")
    recall, seconds = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for way, label, colour, side in _WAYS:
        values = [result["evaluation"]["retrieval"][f"{way}_r1"] for result in results]
        _bars(recall, places + side * _BAR / 2, values, "{:.1f}".format, color=colour, label=label)
    _bars(seconds, places, [result["training"]["seconds"] for result in results], _seconds, color="tab:blue")
    recall.set(title="R@1 (%)", ylim=(ends[-1], 0))
    recall.set_yticks(places, labels=names, fontsize=7.5)
    seconds.set_title("training, seconds")
    _dress(recall, most=100)
    _dress(seconds)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _bars(
    panel: Axes, places: NDArray[np.float64], values: Sequence[float], text: Callable[[float], str], **style: Any
) -> None:
    """Bars with their numbers, on an axis that is as long as they and those drawn before."""
    bars = panel.barh(places, values, _BAR, **style)
    panel.bar_label(bars, labels=[text(value) for value in values], padding=2, fontsize=7)
    panel.set_xlim(0, _ROOM * panel.dataLim.x1 or 1)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _dress(panel: Axes, most: float = math.inf) -> None:
    """Ticks at round numbers, none beyond the most that a value can be, and little else."""
    end = panel.get_xlim()[1]
    ticks = [tick for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, end) if tick <= min(end, most)]
    panel.set_xticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])
    panel.title.set_fontsize(10)
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.tick_params(axis="x", labelsize=7.5)
    panel.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
