"""The picture of a training: the best epoch is marked, and any log makes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.parametrize(("best", "named"), [((1,), "best epoch: 1"), ((1, 2, 4), "best epoch: 4")])
def test_the_best_epoch_is_marked_and_named(best: tuple[int, ...], named: str) -> None:
    # Recall falls: whether an epoch was best is for the log to say, whatever the training went by.
    figure = training_figure(log(1.0, recalls=(50.0, 40.0, 30.0, 20.0), best=best))
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == named
    (line,) = [line for line in figure.axes[1].lines if line.get_label() == named]
    assert list(line.get_xdata()) == [best[-1]] * 2  # type: ignore[arg-type]


@pytest.mark.parametrize("entries", [[], log(1e-9, 3e8), log(*range(1000), recalls=tuple(range(100)))])
def test_any_log_makes_a_picture(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    draw_training(tmp_path / "curves.png", entries)
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 1000
