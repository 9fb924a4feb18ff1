"""Pictures of attention: brightness, outlines and shades of words follow the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

import crossret.explain.pictures
from crossret.explain.pictures import WORD_SHADE, Panel, draw_attention
from crossret.training.curves import draw_training

SIDE = 60
IMAGE = np.full((SIDE, SIDE, 3), (200, 100, 50), np.uint8)
# The second lies inside the first, the third touches neither.
BOXES = np.array([[0, 0, 40, 40], [10, 10, 30, 30], [40, 40, 60, 60]], np.float32)
RED, GREEN = (255, 48, 48), (48, 224, 96)


def draw(
    path: Path,
    weights: list[list[float]],
    *,
    order: tuple[int, ...] = (0, 1, 2),
    objects: dict[int, np.ndarray] | None = None,
) -> np.ndarray:
    """The picture's colours (pixels, 3), with the regions given in this order."""
    words = [f"word{i}" for i in range(len(weights))]
    values = np.array(weights, np.float32)[:, order]
    named = [[objects[word]] if objects and word in objects else [] for word in range(len(words))]
    panels = [Panel(*contents) for contents in zip(words, values, values.argmax(1).tolist(), named, strict=True)]
    draw_attention(path, IMAGE, BOXES[list(order)], " ".join(words), panels)
    return colours_of(path)


def colours_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)


def count(colours: np.ndarray, colour: tuple[float, ...] | np.ndarray) -> int:
    return int((np.abs(colours - np.asarray(colour)).max(axis=1) <= 2).sum())


def test_where_regions_overlap_the_strongest_shows(tmp_path: Path) -> None:
    weights = [[0.5, 0.2, 0.1], [0.1, 0.5, 0.2]]
    first = draw(tmp_path / "a.png", weights)
    assert np.array_equal(first, draw(tmp_path / "b.png", weights, order=(2, 1, 0)))


def test_each_word_has_a_brightness_scale_of_its_own(tmp_path: Path) -> None:
    full, half = (light * np.array([200, 100, 50]) for light in (1, 0.2 + 0.8 * 0.5 ** (1 / 2.2)))
    alike = draw(tmp_path / "alike.png", [[0.0, 0.8, 0.4]] * 2)
    fainter = draw(tmp_path / "fainter.png", [[0.0, 0.8, 0.4], [0.0, 0.2, 0.1]])
    assert min(count(alike, full), count(alike, half)) > 500
    for light in (full, half):
        assert count(fainter, light) == count(alike, light)


def test_numbers_beneath_are_the_largest_weight_and_the_relevance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(crossret.explain.pictures, "_save", lambda figure, path: figures.append(figure))
    weights = np.array([0.1, 0.6, 0.3], np.float32)
    panels = [Panel("dog", weights, 1, [], -0.125), Panel("cat", weights[::-1] / 2, 1, [], 0.5)]
    draw_attention(tmp_path / "a.png", IMAGE, BOXES, "dog cat", panels, relevance="cosine of word and region")
    draw_attention(tmp_path / "b.png", IMAGE, BOXES, "dog cat", [Panel("head 1", weights, 1, [])])
    words, heads = ([text.get_text() for text in figure.findobj(Text)] for figure in figures)
    assert {"weight 0.60   relevance -0.12", "weight 0.30   relevance 0.50"} <= set(words)
    assert "relevance: cosine of word and region" in "\n".join(words)
    assert "weight 0.60" in heads
    assert "relevance" not in "\n".join(heads)


def test_a_word_that_looks_nowhere_is_dark(tmp_path: Path) -> None:
    colours = draw(tmp_path / "dark.png", [[0.0, 0.0, 0.0]])
    assert count(colours, 0.2 * np.array([200, 100, 50])) > 5000


@pytest.mark.parametrize("word", [0, 1])
def test_the_object_is_outlined_at_the_word_that_names_it(tmp_path: Path, word: int) -> None:
    weights = [[0.1, 0.4, 0.2], [0.4, 0.3, 0.1]]
    without = draw(tmp_path / "without.png", weights)
    with_ = draw(tmp_path / "with.png", weights, objects={word: BOXES[2]})
    assert count(with_, GREEN) > count(without, GREEN) + 100
    assert count(with_, RED) == pytest.approx(count(without, RED), abs=20)


def draw_heads(path: Path, words: list[list[tuple[str, float]]], **options: Any) -> np.ndarray:
    weights = np.array([0.1, 0.6, 0.3], np.float32)
    panels = [Panel(f"head {number}", weights, 1, [], None, of_head) for number, of_head in enumerate(words, start=1)]
    draw_attention(path, IMAGE, BOXES, "a caption", panels, **options)
    return colours_of(path)


def test_words_are_shaded_by_their_weights(tmp_path: Path) -> None:
    def shade(weight: float) -> np.ndarray:
        return np.rint(255 + weight * (np.array(WORD_SHADE) * 255 - 255))

    colours = draw_heads(tmp_path / "a.png", [[("dog", 0.4), ("cat", 0.2)], [("dog", 0.0), ("cat", 0.1)]])
    full, half, quarter = (count(colours, shade(weight)) for weight in (1, 0.5, 0.25))
    assert min(full, half, quarter) > 50  # one scale for all heads
    assert count(draw_heads(tmp_path / "b.png", [[("dog", 0.0)]]), shade(1)) == 0


def test_a_long_caption_is_written_in_lines_within_its_panel(tmp_path: Path) -> None:
    words = [(f"word{number}", 1 / 16) for number in range(16)]
    long, short = (draw_heads(tmp_path / "c.png", [weighed] * 2) for weighed in (words, words[:2]))
    assert len(long) > len(short)  # a higher picture, of panels as large
    assert count(long, RED) == pytest.approx(count(short, RED), rel=0.05)


def test_objects_of_a_caption_are_outlined_in_the_image(tmp_path: Path) -> None:
    without = draw_heads(tmp_path / "without.png", [[("dog", 1.0)]])
    with_ = draw_heads(tmp_path / "with.png", [[("dog", 1.0)]], objects=[BOXES[2], BOXES[1]])
    assert count(with_, GREEN) > count(without, GREEN) + 200


@pytest.mark.parametrize("words", [1, 5, 13])
def test_any_number_of_words(tmp_path: Path, words: int) -> None:
    colours = draw(tmp_path / "words.png", [[0.4, 0.2, 0.1]] * words)
    assert count(colours, RED) > 200 * words


def test_training_curves(tmp_path: Path) -> None:
    recalls = {f"{way}_r{rank}": 50.0 for way in ("i2t", "t2i") for rank in (1, 10)}
    log = [{"kind": "step", "step": 10, "loss": 3.0}, {"kind": "step", "step": 20, "loss": 2.0}]
    draw_training(tmp_path / "empty.png", [])
    draw_training(tmp_path / "full.png", [*log, {"kind": "epoch", "epoch": 1, **recalls}])
    assert (tmp_path / "full.png").read_bytes() != (tmp_path / "empty.png").read_bytes()
