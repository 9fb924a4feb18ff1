"""The picture of a comparison: R@1 both ways by variant, beside the seconds of its training."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from crossret.files.atomic import atomic_write

_WIDTH = 7.6  # inches: a page's text, so that letters have their size in print
_BAR, _LINE, _SPACE = 0.16, 0.13, 0.1  # inches: of a bar, of a line of a name, between variants
_FRAME = 1.0  # inches: titles, axes and legend
_NAME = 34  # characters of a line
_WAYS = (("i2t", "sentence retrieval", "tab:orange", -1), ("t2i", "image retrieval", "tab:green", 1))


def draw_comparison(path: str | os.PathLike[str], results: Sequence[Mapping[str, Any]]) -> None:
    """Write bars as a PNG, a row a variant, the first on top, as high as its name takes.

    Args:
        path: the file to write, atomically.
        results: of ``run_comparison``, at least one.

    Raises:
        OSError: the file cannot be written.
    """
    names = [textwrap.fill(result["variant"], _NAME, break_on_hyphens=False) for result in results]
    heights = [max(2 * _BAR, _LINE * (1 + name.count("\n"))) + _SPACE for name in names]
    ends = np.cumsum(heights)
    places = ends - np.array(heights) / 2  # inches from the top
    figure = Figure(figsize=(_WIDTH, _FRAME + ends[-1]), layout="constrained")
    recall, seconds = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for way, label, colour, side in _WAYS:
        values = [result["evaluation"][f"{way}_r1"] for result in results]
        bars = recall.barh(places + side * _BAR / 2, values, _BAR, color=colour, label=label)
        recall.bar_label(bars, fmt="{:.1f}", padding=2, fontsize=7)
    bars = seconds.barh(places, [result["training"]["seconds"] for result in results], _BAR, color="tab:blue")
    seconds.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=7)
    recall.set(title="R@1 (%)", ylim=(ends[-1], 0))
    recall.set_yticks(places, labels=names, fontsize=7.5)
    seconds.set_title("training, seconds")
    for panel in (recall, seconds):
        panel.margins(x=0.25)  # for the number at the end of the longest bar
        panel.title.set_fontsize(10)
        panel.tick_params(axis="x", labelsize=7.5)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=160)
