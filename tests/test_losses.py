"""The loss module: every hyper-parameter reaches the operation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crossret.losses import TripletLoss
from crossret_kernels import triplet_loss

SCORES = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"margin": 0.7},
        {"negatives": "sum"},
        {"negatives": "softmax"},
        {"negatives": "softmax", "p": 2.0},
        {"reduction": "mean"},
    ],
)
def test_options_reach_the_loss(options: dict[str, Any]) -> None:
    ids = torch.tensor([3, 5, 3, 0])
    expected = triplet_loss(SCORES, image_ids=ids, **options)
    assert torch.equal(TripletLoss(**options)(SCORES, ids), expected)
    assert torch.equal(TripletLoss(**options)(SCORES), triplet_loss(SCORES, **options))
    assert TripletLoss(**options)(SCORES) != TripletLoss(**options)(SCORES, ids)


def test_options_differ() -> None:
    losses = [TripletLoss(0.7), TripletLoss(), TripletLoss(negatives="sum"), TripletLoss(negatives="softmax")]
    losses += [TripletLoss(negatives="softmax", p=2.0), TripletLoss(reduction="mean")]
    assert len({round(loss(SCORES).item(), 4) for loss in losses}) == len(losses)
    assert "margin=0.7, negatives='hardest'" in repr(losses[0])
