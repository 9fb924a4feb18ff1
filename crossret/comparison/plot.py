"""The picture of a comparison: R@1 both ways by variant, beside the seconds of its training."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crossret.files.atomic import atomic_write

_THICK = 0.38  # of a bar; two make a variant, whose place is 1
_ROW_INCHES, _FRAME_INCHES = 0.5, 1.1
_LABEL = 36  # characters of a line
_WAYS = (("i2t", "sentence retrieval", "tab:orange", -1), ("t2i", "image retrieval", "tab:green", 1))


def draw_comparison(path: str | os.PathLike[str], results: Sequence[Mapping[str, Any]]) -> None:
    """Write a PNG of bars, a row a variant, the first on top.

    Args:
        path: the file to write, atomically.
        results: of ``run_comparison``, each as its result.json holds it; at least one.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(10, _FRAME_INCHES + _ROW_INCHES * len(results)), layout="constrained")
    recall, seconds = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = np.arange(len(results))
    for way, label, colour, side in _WAYS:
        values = [result["evaluation"]["retrieval"][f"{way}_r1"] for result in results]
        bars = recall.barh(places + side * _THICK / 2, values, _THICK, color=colour, label=label)
        recall.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    trained = [result["training"]["seconds"] for result in results]
    bars = seconds.barh(places, trained, _THICK, color="tab:blue")
    seconds.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
    recall.set(title="R@1 (%)", xlim=(0, 112), xticks=range(0, 101, 20))
    recall.set_yticks(places, labels=[textwrap.fill(result["variant"], _LABEL) for result in results], fontsize=8)
    recall.set_ylim(-0.6, len(results) - 0.4)
    recall.invert_yaxis()
    recall.legend(loc="upper center", bbox_to_anchor=(0.5, -_FRAME_INCHES / 4 / figure.get_figheight()), ncols=2)
    seconds.set(title="training, seconds", xlim=(0, 1.15 * max(trained)))
    for panel in (recall, seconds):
        _dress(panel)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)


def _dress(panel: Axes) -> None:
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
