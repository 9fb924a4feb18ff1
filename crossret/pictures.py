"""Pictures of what a model does: attention of every word over its image, and the curves of a training run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from crossret.files import atomic_write

DISPLAY_GAMMA = 2.2  # pixel values are not proportional to light; the light that the eye gets shall be, to strength
DARKEST = 0.2  # brightness where a word does not look at all: the image stays recognisable
COLUMNS = (6, 5, 7)  # by preference
PANEL_INCHES = 1.9
STRONGEST_LINE: dict[str, Any] = {"edgecolor": "#ff3030", "linewidth": 1.8}
OBJECT_LINE: dict[str, Any] = {"edgecolor": "#30e060", "linewidth": 1.8, "linestyle": (0, (3, 2))}


def draw_attention(
    path: str | os.PathLike[str],
    image: NDArray[np.uint8],
    boxes: NDArray[np.float32],
    words: Sequence[str],
    strength: NDArray[np.float32],
    strongest: Sequence[int],
    objects: Mapping[int, NDArray[np.float32]],
) -> None:
    """Write a PNG as SCAN Fig. 4: the image, then one panel a word with brightness by attention strength.

    One brightness scale serves all panels of a picture: white is the largest strength of any word here, so that words
    that matter less are darker. Where regions overlap, the strongest of them is shown.

    Args:
        path: the file to write, atomically.
        image: (H, W, 3).
        boxes: (R, 4) x0, y0, x1, y1 of the regions, pixels.
        words: the V words to show, in order.
        strength: (V, R) ≥ 0, attention strength of each word over the regions.
        strongest: V region indices, outlined in red: where each word's attention weight is largest.
        objects: by position in ``words``, the box of the object that the word names, outlined in green.

    Raises:
        OSError: the file cannot be written.
    """
    columns = min(COLUMNS, key=lambda count: -(len(words) + 1) % count)  # as few empty places as possible
    rows = math.ceil((len(words) + 1) / columns)
    figure = Figure(figsize=(columns * PANEL_INCHES, rows * (PANEL_INCHES + 0.3) + 0.95), layout="constrained")
    figure.suptitle(" ".join(words), fontsize=11, wrap=True)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    panels[0].imshow(image)
    panels[0].set_title("image", fontsize=10, style="italic", color="0.4")
    for box in boxes:
        _outline(panels[0], box, edgecolor="white", linewidth=0.6)
    largest = max(float(strength.max()), np.finfo(np.float32).tiny)
    for position, word in enumerate(words):
        panel = panels[position + 1]
        light = _light(image.shape[:2], boxes, strength[position] / largest)
        panel.imshow((image * light[:, :, None]).astype(np.uint8))
        panel.set_title(word, fontsize=10, weight="bold" if position in objects else "normal")
        panel.text(
            0.97,
            0.03,
            f"{strength[position].max():.2f}",
            fontsize=8,
            color="white",
            ha="right",
            va="bottom",
            transform=panel.transAxes,
            bbox={"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 1.5},
        )
        _outline(panel, boxes[strongest[position]], **STRONGEST_LINE)
        if position in objects:
            _outline(panel, objects[position], **OBJECT_LINE)
    figure.legend(
        handles=[
            Patch(fill=False, label="region with the largest weight", **STRONGEST_LINE),
            Patch(fill=False, label="object that the noun names", **OBJECT_LINE),
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=9,
        frameon=False,
        title=f"brightness: attention strength (weight times relevance), 0 to {largest:.2f}; number: the largest",
        title_fontsize=9,
    )
    _save(figure, path)


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
    loss.set(title="training loss of a batch", xlabel="step", yscale="log")
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
    _save(figure, path)


def _light(size: tuple[int, ...], boxes: NDArray[np.float32], strength: NDArray[np.float32]) -> NDArray[np.float32]:
    """(H, W) brightness of every pixel: the strongest region over it, from DARKEST to 1."""
    light = np.zeros(size, np.float32)
    for (x0, y0, x1, y1), value in zip(np.rint(boxes).astype(int).clip(min=0), strength, strict=True):
        light[y0:y1, x0:x1] = np.maximum(light[y0:y1, x0:x1], value)
    return DARKEST + (1 - DARKEST) * light ** (1 / DISPLAY_GAMMA)


def _outline(panel: Axes, box: NDArray[np.float32], **line: Any) -> None:
    x0, y0, x1, y1 = box - 0.5  # the centre of the first pixel is at 0
    panel.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, clip_on=False, **line))


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
