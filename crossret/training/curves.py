"""The picture of a training: its loss and the recall on the development set."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crossret.files.atomic import atomic_write

_SECONDS = 30  # between two drawings while training goes on: one takes a good part of a second


class Curves:
    """The picture of a training that is going on.

    Args:
        path: the file to write.
        entries: of the log, to which more are added meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str], entries: Sequence[Mapping[str, Any]]) -> None:
        self._path = path
        self._entries = entries
        self._drawn = 0
        self._when = time.monotonic()

    def draw(self) -> None:
        """Draw what there is, if that is more than was drawn before; a picture that cannot be written is a warning."""
        if len(self._entries) > self._drawn:
            try:
                draw_training(self._path, self._entries)
            except OSError as error:
                warnings.warn(f"the curves are not drawn: {error}", stacklevel=2)
            self._drawn, self._when = len(self._entries), time.monotonic()

    def draw_sometimes(self) -> None:
        """As ``draw``, unless it was drawn just now."""
        if time.monotonic() - self._when >= _SECONDS:
            self.draw()


def draw_training(path: str | os.PathLike[str], log: Sequence[Mapping[str, Any]]) -> None:
    """Write a PNG of a training: the loss of the steps, and recall on the development set after each epoch.

    Args:
        path: the file to write, atomically.
        log: the entries of a training's log.jsonl, in order.

    Raises:
        OSError: the file cannot be written.
    """
    steps = [entry for entry in log if entry["kind"] == "step"]
    epochs = [entry for entry in log if entry["kind"] == "epoch"]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    loss, recall = figure.subplots(1, 2)
    loss.plot([entry["step"] for entry in steps], [entry["loss"] for entry in steps], color="tab:blue", linewidth=1)
    loss.set(title="training loss of a batch", xlabel="step")
    if any(entry["loss"] > 0 for entry in steps):
        loss.set_yscale("log")
    numbers = [entry["epoch"] for entry in epochs]
    for way, query, colour in (("i2t", "sentence retrieval", "tab:orange"), ("t2i", "image retrieval", "tab:green")):
        for rank, style in ((1, "-"), (10, ":")):
            values = [entry[f"{way}_r{rank}"] for entry in epochs]
            recall.plot(numbers, values, style, color=colour, marker="o", markersize=3, label=f"{query} R@{rank}")
    recall.set(title="development set after each epoch", xlabel="epoch", ylabel="recall (%)", ylim=(0, 100))
    recall.xaxis.set_major_locator(MaxNLocator(integer=True))
    recall.legend(fontsize=8)
    for panel in (loss, recall):
        panel.grid(alpha=0.3)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
