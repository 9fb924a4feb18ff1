"""Texts to train on, and one training step beside another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

QUERIES = ["a small red circle", "two boats on a lake", "the old dog", "snow"]
DOCUMENTS = [
    "a circle that is red and small beside a square",
    "boats lie on the lake below the hills",
    "an old dog sleeps",
    "snow falls on the hills and on the old boats",
]
NEGATIVES = ["a green square", "a lake", "a young cat runs on the hills below the snow", "rain"]


def gradients(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """The loss and the gradients of all parameters that it reaches, joined."""
    model.zero_grad()
    found = loss()
    found.backward()
    return found.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def check_same(ours: tuple[float, torch.Tensor], theirs: tuple[float, torch.Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-6)
    assert theirs[1].norm() > 0
    assert (ours[1] - theirs[1]).norm() <= 1e-4 * theirs[1].norm()
