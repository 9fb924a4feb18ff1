"""Pictures of attention: brightness, outlines, shades of words and marks follow the numbers, and all can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from crossret.explain.pictures import DARKEST, DOTS, WIDTH, Panel, attention_sheet, draw_attention

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
        draw_attention(tmp_path / f"{number}.png", IMAGE, BOXES[order], "two words", panels)
        with Image.open(tmp_path / f"{number}.png") as picture:
            written.append(np.asarray(picture.convert("RGB")))
    assert np.array_equal(*written)


def sheet(
    *weights: list[float], words: list[list[float]] | None = None, relevances: list[float] | None = None
) -> Figure:
    """A sheet with a panel each of these weights of the regions and, if given, of words "w0", "w1" and so on."""
    panels = [
        Panel(
            f"panel {number}",
            np.array(of_regions, np.float32),
            int(np.argmax(of_regions)),
            [],
            relevances[number] if relevances else None,
            [(f"w{i}", weight) for i, weight in enumerate(words[number])] if words else None,
        )
        for number, of_regions in enumerate(weights)
    ]
    return attention_sheet(IMAGE, BOXES, "a caption", panels, relevance="a cosine" if relevances else None)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]  # type: ignore[attr-defined]


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


def test_nearly_uniform_weights_look_uniform_and_are_marked() -> None:
    figure = sheet([0.30, 0.36, 0.34], [0.32, 0.34, 0.34])
    for panel in range(2):  # their mean is half of full brightness, whatever the largest of them is
        np.testing.assert_allclose(light(figure, panel), DARKEST + (1 - DARKEST) * 0.5 ** (1 / 2.2), atol=0.03)
    assert texts(figure).count("nearly uniform") == 2
    mixed = texts(sheet([0.30, 0.36, 0.34], [0.1, 0.51, 0.39], [0.1, 0.49, 0.41]))  # 1.5 times the mean is 0.5
    assert mixed.count("nearly uniform") == 2
    assert "nearly uniform: the largest weight is less than 1.5 times the mean" in mixed
    assert not any("nearly" in text for text in texts(sheet([0.1, 0.6, 0.3])))


def test_numbers_beneath_are_the_largest_weight_and_the_relevance() -> None:
    words = texts(sheet([0.1, 0.6, 0.3], [0.15, 0.3, 0.05], relevances=[-0.125, 0.5]))
    assert {"weight 0.60  relevance -0.12", "weight 0.30  relevance 0.50", "relevance: a cosine"} <= set(words)
    heads = texts(sheet([0.1, 0.6, 0.3]))
    assert "weight 0.60" in heads
    assert not any("relevance" in text for text in heads)


def shades(figure: Figure) -> list[float]:
    """How shaded the words are, in order."""
    figures: Any = figure
    return [patch.get_facecolor()[3] for patch in figures.findobj(Rectangle) if patch.get_gid() == "shade"]


def test_words_are_shaded_by_what_they_have_beyond_the_mean() -> None:
    looks = [0.1, 0.6, 0.3]
    figure = sheet(looks, looks, words=[[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.2, 0.3]])
    # Twice the mean of 0.25 is full shade, since no word has more.
    np.testing.assert_allclose(shades(figure), [0, 0, 0.2, 0.6, 0, 0, 0, 0.2], atol=1e-6)
    assert texts(figure).count("words nearly uniform") == 1
    sharp = sheet(looks, looks, words=[[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.2, 0.3]])
    np.testing.assert_allclose(shades(sharp), [1, 0, 0, 0, 0, 0, 0, 0.05 / 0.45], atol=1e-6)
    scale = sharp.axes[-1]
    assert [tick.get_text() for tick in scale.get_xticklabels()] == ["mean 0.25, or less", "0.70"]
    uniform = sheet([0.33, 0.33, 0.34], words=[[0.25] * 4])
    assert shades(uniform) == [0] * 4
    assert "both nearly uniform" in texts(uniform)


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
