"""The picture of a training: whole epochs, plain numbers, the best epoch, and axes that fit what is drawn on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from crossret.training.curves import draw_training, training_figure


def log(*losses: float, recalls: tuple[float, ...] = (), best: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """A log with these losses of steps, and of epochs their recall, which was best after those."""
    names = [f"{way}_r{rank}" for way in ("i2t", "t2i") for rank in (1, 10)]
    steps = [{"kind": "step", "step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    return steps + [
        {"kind": "epoch", "epoch": epoch, "best": epoch in best, **dict.fromkeys(names, recall)}
        for epoch, recall in enumerate(recalls, start=1)
    ]


def ticks(figure: Figure, panel: int, axis: str) -> list[str]:
    """The texts at a panel's axis that are within it."""
    figure.draw_without_rendering()
    chosen = getattr(figure.axes[panel], f"{axis}axis")
    low, high = sorted(chosen.get_view_interval())
    shown = zip(chosen.get_majorticklocs(), chosen.get_majorticklabels(), strict=True)
    minor = [text.get_text() for text in chosen.get_minorticklabels() if text.get_text()]
    return [text.get_text() for place, text in shown if low <= place <= high] + minor


@pytest.mark.parametrize(
    ("losses", "scale", "expected"),
    [
        ((6.3, 5.0, 4.0), "log", ["4", "4.5", "5", "5.5", "6"]),
        ((50.0, 9.0, 2.0), "log", ["2", "5", "10", "20", "50"]),
        ((20_000.0, 9.0, 3.0), "log", ["10", "100", "1,000", "10,000"]),
        ((0.0, 0.0), "linear", ["0.0", "0.2", "0.4", "0.6", "0.8"]),  # which has no logarithm
    ],
)
def test_the_loss_has_plain_numbers(losses: tuple[float, ...], scale: str, expected: list[str]) -> None:
    figure = training_figure(log(*losses))
    assert figure.axes[0].get_yscale() == scale
    assert ticks(figure, 0, "y") == expected


def test_epochs_are_whole_and_recall_fills_its_axis() -> None:
    figure = training_figure(log(1.0, recalls=(0.0, 60.0, 100.0)))
    assert ticks(figure, 1, "x") == ["1", "2", "3"]
    low, high = figure.axes[1].get_ylim()
    assert (low, 100 < high <= 110) == (0, True)


@pytest.mark.parametrize(("best", "named"), [((1,), "best epoch: 1"), ((1, 2, 4), "best epoch: 4")])
def test_the_best_epoch_is_marked_and_named(best: tuple[int, ...], named: str) -> None:
    # Recall falls: whether an epoch was best is for the log to say, whatever the training went by.
    figure = training_figure(log(1.0, recalls=(50.0, 40.0, 30.0, 20.0), best=best))
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == named
    (line,) = [line for line in figure.axes[1].lines if line.get_label() == named]
    assert list(line.get_xdata()) == [best[-1]] * 2  # type: ignore[arg-type]


@pytest.mark.parametrize("entries", [[], log(2.5), log(1e-9, 3e8), log(*range(1000), recalls=tuple(range(100)))])
def test_any_log_makes_a_picture(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    draw_training(tmp_path / "curves.png", entries)
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 1000
