"""Pictures of attention: where words, heads or steps look in an image, and what heads and steps weigh in a caption."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray

from crossret.explain.page.scale import DARKEST, NEARLY_UNIFORM, Scale, nearly_uniform
from crossret.files.atomic import atomic_write

WORD_SHADE = (1.0, 0.55, 0.1)
STRONGEST_LINE: dict[str, Any] = {"edgecolor": "#ff3030", "linewidth": 1.3}
OBJECT_LINE: dict[str, Any] = {"edgecolor": "#30e060", "linewidth": 1.3, "linestyle": (0, (3, 2))}
REGION_LINEWIDTH = 0.5
MARK_COLOUR = "#b00020"

# Inches. A sheet is as wide as the text of a page, so that letters have in print the sizes that they have here.
WIDTH, MARGIN, GAP = 7.0, 0.12, 0.1
LARGEST_PANEL = 2.2
TALLEST = 1.5  # height of a panel, by its width; a taller image is narrower than its panel
COLUMNS = (5, 4)  # first choice first; either leaves room for what is written beneath a panel
SCALE_WIDTH, SCALE_HEIGHT = 2.4, 0.09

DOTS = 160  # an inch

# Points.
CAPTION_SIZE, TITLE_SIZE, NUMBER_SIZE, WORD_SIZE, LEGEND_SIZE = 9.0, 8.5, 6.5, 6.5, 7.5
WORD_PAD = 0.9  # a shade's margin around its word
SPACE = 0.35  # between words, of their size
LEADING = 1.4  # from line to line, of their size


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

    def mark(self) -> str:
        """Mark beneath a panel whose weights are nearly uniform; empty where none are."""
        of_regions = nearly_uniform(self.weights)
        if self.words is None:
            return "nearly uniform" if of_regions else ""
        of_words = nearly_uniform(np.array([weight for _, weight in self.words]))
        if of_regions and of_words:
            return "both nearly uniform"
        return "regions nearly uniform" if of_regions else "words nearly uniform" if of_words else ""


def write_sheet(path: str | os.PathLike[str], sheet: Figure) -> None:
    """Write an ``attention_sheet`` as a PNG, whole or not at all; raises an OSError."""
    with atomic_write(path) as file:
        sheet.savefig(file, format="png", dpi=DOTS)


def attention_sheet(
    image: NDArray[np.uint8],
    boxes: NDArray[np.float32],
    title: str,
    panels: Sequence[Panel],
    objects: Sequence[NDArray[np.float32]] = (),
    relevance: str | None = None,
) -> Figure:
    """Draw as SCAN Fig. 4 the image, then one panel a word with brightness by attention weight.

    A word's relevance, by which SCAN's figure is darkened too, is a number instead, or most words would be black.
    Likewise of heads (MHSAN Figs. 3-5) and of steps (SMAN Figs. 9, 10), with the caption beneath each, its words shaded
    by what their weights are above the mean. All panels have the same scales, which are drawn beneath them, and what is
    nearly uniform is marked as such: attention that does not choose does not look as if it did. Where regions overlap,
    the one with the larger weight is shown. The sheet is as wide as a page's text, to be read in print.

    Args:
        image: (H, W, 3).
        boxes: (R, 4) x0, y0, x1, y1 of the regions, pixels.
        title: the caption.
        panels: at least one, in order, all with words or none.
        objects: boxes (4,) outlined in green in the image itself.
        relevance: meaning of the panels' relevances, in words; None where they have none.
    """
    count = len(panels) + 1
    # Columns with the fewest empty places; few panels are larger.
    columns = count if count < min(COLUMNS) else min(COLUMNS, key=lambda columns: -count % columns)
    rows = math.ceil(count / columns)
    width = min(LARGEST_PANEL, (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns)
    height = width * min(image.shape[0] / image.shape[1], TALLEST)
    captions = [_lines(panel.words or (), WORD_SIZE, width) for panel in panels]
    marked = any(panel.mark() for panel in panels)
    title_lines = _lines([(word, 0) for word in title.split()], CAPTION_SIZE, WIDTH - 2 * MARGIN)
    scales = [Scale.of([panel.weights for panel in panels])]
    if any(captions):
        scales.append(Scale.of([[weight for _, weight in panel.words or ()] for panel in panels]))
    notes = [] if relevance is None else [f"relevance: {relevance}"]
    if marked:
        notes.append(f"nearly uniform: the largest weight is less than {NEARLY_UNIFORM:g} times the mean")

    above, numbers = _line(TITLE_SIZE), _line(NUMBER_SIZE) * (1 + marked)
    row = above + height + numbers + _word_line() * max(map(len, captions)) + GAP
    top = MARGIN + len(title_lines) * _line(CAPTION_SIZE)
    bottom = top + rows * row + GAP
    page = _Page(bottom + _line(LEGEND_SIZE) * (1 + 2 * len(scales) + len(notes)) + 2 * MARGIN)
    for number, line in enumerate(title_lines):
        page.write(WIDTH / 2, MARGIN + number * _line(CAPTION_SIZE), " ".join(word for word, _ in line), CAPTION_SIZE)
    left = (WIDTH - columns * width - (columns - 1) * GAP) / 2
    places = [(left + (n % columns) * (width + GAP), top + (n // columns) * row + above) for n in range(count)]
    _draw_image(page.axes(*places[0], width, height), image, boxes, objects)
    page.write(places[0][0] + width / 2, places[0][1] - above, "image", TITLE_SIZE, style="italic", color="0.4")
    for (x, y), panel, caption in zip(places[1:], panels, captions, strict=True):
        middle, beneath, weight = x + width / 2, y + height + 0.02, "bold" if panel.objects else "normal"
        page.write(middle, y - above, _cut(panel.title, TITLE_SIZE, width, weight), TITLE_SIZE, weight=weight)
        _draw_panel(page.axes(x, y, width, height), image, boxes, panel, scales[0])
        page.write(middle, beneath, _numbers(panel), NUMBER_SIZE, color="0.3")
        page.write(middle, beneath + _line(NUMBER_SIZE), panel.mark(), NUMBER_SIZE, color=MARK_COLOUR)
        for number, line in enumerate(caption):
            page.write_words(middle, beneath + numbers + number * _word_line(), line, scales[-1])
    _explain(page, bottom, scales, notes, outlined=any(len(panel.objects) for panel in panels) or len(objects) > 0)
    return page.figure


class _Page:
    """A figure in which everything has its place, in inches from the left and from the top."""

    def __init__(self, height: float) -> None:
        self.height = height
        self.figure = Figure(figsize=(WIDTH, height))

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes with this corner, left and above."""
        place = (x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(place)

    def write(self, x: float, y: float, text: str, size: float, ha: str = "center", **style: Any) -> None:
        """Text beneath y, in letters of this size."""
        y += (LEADING - 1) / 2 * size / 72
        # A caption's dollars are no formulas.
        self.figure.text(x / WIDTH, 1 - y / self.height, text, size=size, ha=ha, va="top", parse_math=False, **style)

    def write_words(self, x: float, y: float, line: Sequence[tuple[str, float]], scale: Scale) -> None:
        """A line of words around x, shaded by their weights."""
        widths = [_width(word, WORD_SIZE) for word, _ in line]
        space = SPACE * WORD_SIZE / 72
        x -= (sum(widths) + space * (len(line) - 1)) / 2
        for (word, weight), width in zip(line, widths, strict=True):
            shade = (*WORD_SHADE, float(scale.shade(weight)))
            pad, high = WORD_PAD / 72, _word_line() - WORD_PAD / 72
            self.figure.add_artist(
                Rectangle(
                    ((x - pad) / WIDTH, 1 - (y + high) / self.height), (width + 2 * pad) / WIDTH, high / self.height,
                    facecolor=shade, edgecolor="none", gid="shade",
                )
            )  # fmt: skip
            self.figure.text(
                x / WIDTH, 1 - (y + high / 2) / self.height, word, size=WORD_SIZE, va="center_baseline",
                parse_math=False,
            )  # fmt: skip
            x += width + space


def _draw_image(
    place: Axes, image: NDArray[np.uint8], boxes: NDArray[np.float32], objects: Sequence[NDArray[np.float32]]
) -> None:
    place.set_axis_off()
    place.imshow(image)
    for box in boxes:
        _outline(place, box, edgecolor="white", linewidth=REGION_LINEWIDTH)
    for box in objects:
        _outline(place, box, **OBJECT_LINE)


def _draw_panel(place: Axes, image: NDArray[np.uint8], boxes: NDArray[np.float32], panel: Panel, scale: Scale) -> None:
    place.set_axis_off()
    light = np.zeros(image.shape[:2], np.float32)
    for (x0, y0, x1, y1), value in zip(np.rint(boxes).astype(int).clip(min=0), scale.light(panel.weights), strict=True):
        light[y0:y1, x0:x1] = np.maximum(light[y0:y1, x0:x1], value)
    place.imshow((image * (DARKEST + (1 - DARKEST) * light)[:, :, None]).astype(np.uint8))
    _outline(place, boxes[panel.strongest], **STRONGEST_LINE)
    for box in panel.objects:
        _outline(place, box, **OBJECT_LINE)


def _outline(place: Axes, box: NDArray[np.float32], **line: Any) -> None:
    x0, y0, x1, y1 = box - 0.5  # the centre of the first pixel is at 0
    place.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, clip_on=False, **line))


def _explain(page: _Page, y: float, scales: Sequence[Scale], notes: Sequence[str], *, outlined: bool) -> None:
    """Legend of outlines, brightness, shades and marks, for words or, with a second scale, for heads and steps."""
    named = "object that the noun names" if len(scales) == 1 else "object that the caption names"
    page.figure.legend(
        handles=[
            Patch(fill=False, label="region with the largest weight", **STRONGEST_LINE),
            *([Patch(fill=False, label=named, **OBJECT_LINE)] if outlined else []),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - y / page.height),
        borderaxespad=0,
        borderpad=0,
        ncols=2,
        fontsize=LEGEND_SIZE,
        frameon=False,
    )
    y += _line(LEGEND_SIZE) + MARGIN / 2
    _draw_scale(page, y, "brightness of a region: its weight, one scale for all panels", scales[0], of_words=False)
    y += 2 * _line(LEGEND_SIZE)
    if len(scales) > 1:
        _draw_scale(page, y, "shade of a word: its weight, one scale for all panels", scales[1], of_words=True)
        y += 2 * _line(LEGEND_SIZE)
    for number, note in enumerate(notes):
        page.write(WIDTH / 2, y + number * _line(LEGEND_SIZE), note, LEGEND_SIZE)


def _draw_scale(page: _Page, y: float, text: str, scale: Scale, *, of_words: bool) -> None:
    """A bar from no brightness, or no shade, to all of it, and the weights that they stand for."""
    steps = np.linspace(0, 1, 256)
    if of_words:
        colours = 1 + steps[:, None] * (np.array(WORD_SHADE) - 1)
        ticks = {0.0: f"mean {_weight(scale.mean)}, or less"}
    else:
        colours = np.repeat(DARKEST + (1 - DARKEST) * steps[:, None], 3, axis=1)
        mean = float(scale.light(scale.mean))
        # A tick too near to be read beside the other is left out.
        ticks = {**({0.0: "0"} if mean > 0.25 else {}), mean: f"mean {_weight(scale.mean)}"}
    page.write(WIDTH / 2 + GAP, y, text, LEGEND_SIZE, ha="right")
    y += (_line(LEGEND_SIZE) - SCALE_HEIGHT) / 2
    place = page.axes(WIDTH / 2 + 5 * GAP, y, SCALE_WIDTH, SCALE_HEIGHT)
    place.imshow(colours[None], aspect="auto", extent=(0, 1, 0, 1))
    ticks[1.0] = _weight(scale.full)
    place.set_xticks(list(ticks), labels=list(ticks.values()), size=NUMBER_SIZE)
    place.tick_params(axis="x", length=2, pad=1.5)
    place.set_yticks([])
    for spine in place.spines.values():
        spine.set(linewidth=0.4, color="0.5")


def _numbers(panel: Panel) -> str:
    """Line beneath a panel."""
    weight = f"weight {panel.weights.max():.2f}"
    return weight if panel.relevance is None else f"{weight}  relevance {panel.relevance:.2f}"


def _weight(weight: float) -> str:
    return f"{weight:.2f}" if weight >= 0.1 or weight == 0 else f"{weight:.3f}"


def _lines(words: Sequence[tuple[str, float]], size: float, room: float) -> list[list[tuple[str, float]]]:
    """Words with their weights as lines of at most ``room`` inches; a longer word is cut."""
    lines: list[list[tuple[str, float]]] = []
    left = -1.0
    for word, weight in words:
        word = _cut(word, size, room)
        width = _width(word, size)
        if width > left:
            lines.append([])
            left = room
        lines[-1].append((word, weight))
        left -= width + SPACE * size / 72
    return lines


def _cut(text: str, size: float, room: float, weight: str = "normal") -> str:
    """Beginning of a text that there is room for, in inches."""
    if _width(text, size, weight) <= room:
        return text
    kept = len(text) - 1
    while kept and _width(text[:kept] + "…", size, weight) > room:
        kept -= 1
    return text[:kept] + "…"


@lru_cache(maxsize=4096)  # panels of a sheet have the same words
def _width(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text, inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)
    return float(width) / 72


def _line(size: float) -> float:
    """Distance from line to line of letters of this size, inches."""
    return LEADING * size / 72


def _word_line() -> float:
    """Distance from line to line of shaded words, inches."""
    return (LEADING * WORD_SIZE + 2 * WORD_PAD) / 72
