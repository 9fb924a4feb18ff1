"""Pictures of attention: brightness follows the numbers, and all can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from crossret.explain.pictures import DARKEST, DOTS, WIDTH, Panel, attention_sheet, write_sheet

SIDE = 60
IMAGE = np.full((SIDE, SIDE, 3), (200, 100, 50), np.uint8)
# The second lies inside the first, the third touches neither.
BOXES = np.array([[0, 0, 40, 40], [10, 10, 30, 30], [40, 40, 60, 60]], np.float32)


def test_where_regions_overlap_the_strongest_shows(tmp_path: Path) -> None:
    """In whatever order they come."""
    written = []
    for number, order in enumerate(([0, 1, 2], [2, 1, 0])):
        panels = []
        for word in ([0.5, 0.2, 0.1], [0.1, 0.5, 0.2]):
            weights = np.array(word, np.float32)[order]
            panels.append(Panel("a word", weights, int(weights.argmax()), []))
        write_sheet(tmp_path / f"{number}.png", attention_sheet(IMAGE, BOXES[order], "two words", panels))
        with Image.open(tmp_path / f"{number}.png") as picture:
            written.append(np.asarray(picture.convert("RGB")))
    assert np.array_equal(*written)


def sheet(*weights: list[float]) -> Figure:
    """A sheet with a panel each of these weights of the regions."""
    panels = [
        Panel(
            f"panel {number}",
            np.array(of_regions, np.float32),
            int(np.argmax(of_regions)),
            [],
        )
        for number, of_regions in enumerate(weights)
    ]
    return attention_sheet(IMAGE, BOXES, "a caption", panels)


def light(figure: Figure, panel: int) -> np.ndarray:
    """By which the panel's pixels are multiplied where only one region is: in each of the three."""
    pixels = figure.axes[1 + panel].images[0].get_array()
    assert pixels is not None
    return np.asarray(pixels)[[5, 20, 50], [5, 20, 50], 0] / 200


def test_one_scale_of_brightness_for_all_panels() -> None:
    sharp, even, faint = [0.0, 0.8, 0.2], [0.3, 0.4, 0.3], [0.2, 0.4, 0.4]
    figure = sheet(sharp, even, faint)
    for panel, weights in enumerate((sharp, even, faint)):
        expected = DARKEST + (1 - DARKEST) * (np.array(weights) / 0.8) ** (1 / 2.2)
        np.testing.assert_allclose(light(figure, panel), expected, atol=1 / 100)
    scale = figure.axes[-1]
    assert [tick.get_text() for tick in scale.get_xticklabels()] == ["0", "mean 0.33", "0.80"]
    np.testing.assert_allclose(scale.get_xticks(), [0, (1 / 3 / 0.8) ** (1 / 2.2), 1], atol=1e-6)


@pytest.mark.parametrize(("panels", "words"), [(1, 0), (2, 30), (4, 3), (9, 14), (13, 0)])
def test_nothing_is_cut_or_in_two_places(panels: int, words: int) -> None:
    caption = " ".join(f"word{number}" for number in range(words))
    shaded = [(f"word{number}", 1 / words) for number in range(words)] + [("W" * 80, 0.0)] if words else None
    made = [Panel("Titles" * 20, np.full(3, 0.333, np.float32), 1, [], -0.25, shaded) for _ in range(panels)]
    figure = attention_sheet(IMAGE, BOXES, caption + " costs $5 and $6", made, relevance="a cosine")
    figure.set_dpi(DOTS)
    figure.draw_without_rendering()
    figures: Any = figure
    boxes = [text.get_window_extent() for text in figures.findobj(Text) if text.get_text() and text.get_visible()]
    assert figure.get_figwidth() == WIDTH
    for box in boxes:
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and 0 <= box.y0 and box.y1 <= figure.bbox.y1
    corners = np.array([box.extents for box in boxes])
    low, high = np.maximum(corners[:, None, :2], corners[:, :2]), np.minimum(corners[:, None, 2:], corners[:, 2:])
    overlap = (high - low > 2).all(axis=2)  # pixels: letters' boxes may touch
    assert overlap.sum() == len(boxes)  # each with itself


def test_words_are_shaded_by_what_they_have_beyond_the_mean() -> None:
    shares = [[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.2, 0.3]]
    panels = [
        Panel("head", np.array([0.1, 0.6, 0.3], np.float32), 1, [], words=[(str(n), one) for n, one in enumerate(own)])
        for own in shares
    ]
    figure: Any = attention_sheet(IMAGE, BOXES, "a caption", panels)
    shades = [patch.get_facecolor()[3] for patch in figure.findobj(Rectangle) if patch.get_gid() == "shade"]
    np.testing.assert_allclose(shades, [1, 0, 0, 0, 0, 0, 0, 0.05 / 0.45], atol=1e-6)
