"""Pictures of attention: brightness, outlines and shades of words follow the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crossret.explain.pictures import WORD_SHADE, Panel, draw_attention
from crossret.training.curves import draw_training

SIDE = 60
IMAGE = np.full((SIDE, SIDE, 3), (200, 100, 50), np.uint8)
# The second lies inside the first, the third touches neither.
BOXES = np.array([[0, 0, 40, 40], [10, 10, 30, 30], [40, 40, 60, 60]], np.float32)
RED, GREEN = (255, 48, 48), (48, 224, 96)


def draw(
    path: Path,
    strength: list[list[float]],
    *,
    order: tuple[int, ...] = (0, 1, 2),
    objects: dict[int, np.ndarray] | None = None,
) -> np.ndarray:
    """The picture's colours (pixels, 3), with the regions given in this order."""
    words = [f"word{i}" for i in range(len(strength))]
    values = np.array(strength, np.float32)[:, order]
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
    strength = [[0.5, 0.2, 0.1], [0.1, 0.5, 0.2]]
    first = draw(tmp_path / "a.png", strength)
    assert np.array_equal(first, draw(tmp_path / "b.png", strength, order=(2, 1, 0)))


def test_one_brightness_scale_for_all_words(tmp_path: Path) -> None:
    one = draw(tmp_path / "one.png", [[0.0, 0.4, 0.0]])
    both = draw(tmp_path / "both.png", [[0.0, 0.4, 0.0], [0.0, 0.2, 0.0]])
    half = (0.2 + 0.8 * 0.5 ** (1 / 2.2)) * np.array([200, 100, 50])
    assert count(one, half) == 0
    assert count(both, half) > 500


def test_a_word_without_any_strength_is_dark(tmp_path: Path) -> None:
    colours = draw(tmp_path / "dark.png", [[0.0, 0.0, 0.0]])
    assert count(colours, 0.2 * np.array([200, 100, 50])) > 5000


@pytest.mark.parametrize("word", [0, 1])
def test_the_object_is_outlined_at_the_word_that_names_it(tmp_path: Path, word: int) -> None:
    strength = [[0.1, 0.4, 0.2], [0.4, 0.3, 0.1]]
    without = draw(tmp_path / "without.png", strength)
    with_ = draw(tmp_path / "with.png", strength, objects={word: BOXES[2]})
    assert count(with_, GREEN) > count(without, GREEN) + 100
    assert count(with_, RED) == pytest.approx(count(without, RED), abs=20)


def draw_heads(path: Path, words: list[list[tuple[str, float]]], **options: Any) -> np.ndarray:
    strength = np.array([0.1, 0.6, 0.3], np.float32)
    panels = [Panel(f"head {number}", strength, 1, [], of_head) for number, of_head in enumerate(words, start=1)]
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
