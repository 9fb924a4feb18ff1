"""Pictures of what a model does: attention of words, heads or steps over an image, and the curves of a training."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea, VPacker
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

from crossret.files.atomic import atomic_write

DISPLAY_GAMMA = 2.2  # pixel values are not proportional to light; the light that the eye gets shall be, to weights
DARKEST = 0.2  # brightness where nothing looks at all: the image stays recognisable
COLUMNS = (6, 5, 7)  # by preference
PANEL_INCHES = 1.9
LEAST_INCHES = 7.6  # of a picture's width, for the legend
REGION_LINEWIDTH = 0.6
WORD_SIZE, WORD_PAD, WORD_GAP = 6.5, 0.8, 1.0  # points
LINE_INCHES = (WORD_SIZE * 1.4 + 2 * WORD_PAD + 1) / 72
NUMBER_SIZE = 7.5  # points
NUMBER_POINTS = 3 + NUMBER_SIZE * 1.4
WORD_SHADE = (1.0, 0.55, 0.1)
TINY = float(np.finfo(np.float32).tiny)
STRONGEST_LINE: dict[str, Any] = {"edgecolor": "#ff3030", "linewidth": 1.8}
OBJECT_LINE: dict[str, Any] = {"edgecolor": "#30e060", "linewidth": 1.8, "linestyle": (0, (3, 2))}


@dataclass(frozen=True)
class Panel:
    """Where a word, a head or a step looks.

    Attributes:
        title: its name.
        weights: (R,) ≥ 0, of its attention to each region.
        strongest: the region outlined in red, where its attention weight is largest.
        objects: boxes (4,) outlined in green: of the object that a word names, or those that a head or step looks at.
        relevance: of a word to what it looks at, written beside its largest weight. None of a head or step.
        words: how a head or step weighs the caption's words: these with their weights, 0 to 1. None of a word.
    """

    title: str
    weights: NDArray[np.float32]
    strongest: int
    objects: Sequence[NDArray[np.float32]]
    relevance: float | None = None
    words: Sequence[tuple[str, float]] | None = None


def draw_attention(
    path: str | os.PathLike[str],
    image: NDArray[np.uint8],
    boxes: NDArray[np.float32],
    title: str,
    panels: Sequence[Panel],
    objects: Sequence[NDArray[np.float32]] = (),
    relevance: str | None = None,
) -> None:
    """Write a PNG as SCAN Fig. 4: the image, then one panel a word with brightness by attention weight.

    A word's relevance, by which SCAN's figure is darkened too, is a number instead, or most words would be black.
    Likewise of heads (MHSAN Figs. 3-5) and of steps (SMAN Figs. 9, 10), with the caption beneath each, its words shaded
    by their weights. Each panel has a scale of its own, from 0 to the largest weight in it, which is written beneath:
    where a word looks can be seen also of one that divides its attention among all regions. Where regions overlap, the
    one with the larger weight is shown.

    Args:
        path: the file to write, atomically.
        image: (H, W, 3).
        boxes: (R, 4) x0, y0, x1, y1 of the regions, pixels.
        title: the caption.
        panels: at least one, in order, all with words or none.
        objects: boxes (4,) outlined in green in the image itself.
        relevance: what the relevances of the panels are, in words; None where they have none.

    Raises:
        OSError: the file cannot be written.
    """
    count = len(panels) + 1
    # As few empty places as possible; few panels are larger.
    columns = count if count < min(COLUMNS) else min(COLUMNS, key=lambda columns: -count % columns)
    rows = math.ceil(count / columns)
    inches = max(PANEL_INCHES, LEAST_INCHES / columns)
    lines = max((len(_lines(panel.words, inches)) for panel in panels if panel.words is not None), default=0)
    height = inches + 0.3 + NUMBER_POINTS / 72 + lines * LINE_INCHES
    figure = Figure(figsize=(columns * inches, rows * height + 1.1), layout="constrained")
    figure.suptitle(title, fontsize=11, wrap=True)
    # The layout begins with panels as wide as they may get, or it would make room for words that need none.
    places = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"left": 0, "right": 1}).ravel()
    for place in places:
        place.set_axis_off()
    places[0].imshow(image)
    places[0].set_title("image", fontsize=10, style="italic", color="0.4")
    for box in boxes:
        _outline(places[0], box, edgecolor="white", linewidth=REGION_LINEWIDTH)
    for box in objects:
        _outline(places[0], box, **OBJECT_LINE)
    heaviest = max((weight for panel in panels for _, weight in panel.words or ()), default=0.0)
    for place, panel in zip(places[1:], panels, strict=False):
        largest = float(panel.weights.max())
        light = _light(image.shape[:2], boxes, panel.weights / max(largest, TINY))
        place.imshow((image * light[:, :, None]).astype(np.uint8))
        place.set_title(panel.title, fontsize=10, weight="bold" if panel.objects else "normal")
        numbers = f"weight {largest:.2f}"
        if panel.relevance is not None:
            numbers += f"   relevance {panel.relevance:.2f}"
        place.annotate(
            numbers, (0.5, 0), (0, -3), xycoords="axes fraction", textcoords="offset points", ha="center", va="top",
            fontsize=NUMBER_SIZE, color="0.3", annotation_clip=False,
        )  # fmt: skip
        _outline(place, boxes[panel.strongest], **STRONGEST_LINE)
        for box in panel.objects:
            _outline(place, box, **OBJECT_LINE)
        if panel.words is not None:
            _write_words(place, _lines(panel.words, inches), heaviest)
    _explain_marks(figure, relevance, heaviest if lines else None)
    _save(figure, path)


def _explain_marks(figure: Figure, relevance: str | None, heaviest: float | None) -> None:
    """What brightness, numbers and outlines mean, of words or, with a word's largest weight, of heads and steps."""
    scale = "brightness: attention weight, 0 to each panel's largest, which is written beneath it"
    if relevance is not None:
        scale += f"\nrelevance: {relevance}"
    named = "object that the noun names"
    if heaviest is not None:
        named = "object that the caption names"
        scale += f"\nshade of words: their weight, 0 to {heaviest:.2f}"
    legend = figure.legend(
        handles=[
            Patch(fill=False, label="region with the largest weight", **STRONGEST_LINE),
            Patch(fill=False, label=named, **OBJECT_LINE),
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=9,
        frameon=False,
        title=scale,
        title_fontsize=9,
    )
    legend.get_title().set_multialignment("center")


def _lines(words: Sequence[tuple[str, float]], inches: float) -> list[list[tuple[str, float]]]:
    """Words with their weights as lines that fit beneath a panel of this width."""
    lines: list[list[tuple[str, float]]] = [[]]
    left = room = 72 * inches - 14  # points, less the space between panels
    for word, weight in words:
        width = TextPath((0, 0), word, size=WORD_SIZE).get_extents().width + 2 * WORD_PAD + WORD_GAP
        if width > left and lines[-1]:
            lines.append([])
            left = room
        lines[-1].append((word, weight))
        left -= width
    return lines


def _write_words(panel: Axes, lines: Sequence[Sequence[tuple[str, float]]], heaviest: float) -> None:
    """Lines of words beneath a panel, shaded by their weights."""
    packed: list[Artist] = []
    for line in lines:
        areas: list[Artist] = []
        for word, weight in line:
            shade = {"facecolor": (*WORD_SHADE, weight / max(heaviest, TINY)), "linewidth": 0, "pad": WORD_PAD}
            areas.append(TextArea(word, textprops={"fontsize": WORD_SIZE, "bbox": shade}))
        packed.append(HPacker(children=areas, pad=0, sep=2 * WORD_PAD + WORD_GAP))
    box = VPacker(children=packed, align="center", pad=0, sep=2 * WORD_PAD + 1)
    panel.add_artist(
        AnnotationBbox(
            box, (0.5, 0), xycoords="axes fraction", box_alignment=(0.5, 1), xybox=(0, -NUMBER_POINTS - 2),
            boxcoords="offset points", frameon=False, pad=0, annotation_clip=False,
        )
    )  # fmt: skip


def _light(size: tuple[int, ...], boxes: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """(H, W) brightness of every pixel: the largest weight of a region over it, 0 to 1, from DARKEST to 1."""
    light = np.zeros(size, np.float32)
    for (x0, y0, x1, y1), value in zip(np.rint(boxes).astype(int).clip(min=0), weights, strict=True):
        light[y0:y1, x0:x1] = np.maximum(light[y0:y1, x0:x1], value)
    return DARKEST + (1 - DARKEST) * light ** (1 / DISPLAY_GAMMA)


def _outline(panel: Axes, box: NDArray[np.float32], **line: Any) -> None:
    x0, y0, x1, y1 = box - 0.5  # the centre of the first pixel is at 0
    panel.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, clip_on=False, **line))


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
