"""compat.scan on a GPU against SCAN's published formulas in float64."""

from __future__ import annotations

import pytest
import torch

from crossret.compat.scan import ContrastiveLoss, func_attention, xattn_score_i2t, xattn_score_t2i
from tests.compat import published
from tests.gpu.device import DEVICE, gpu

pytestmark = gpu
LENGTHS = (4, 1, 6)


@pytest.mark.parametrize("norm", published.NORMS)
@pytest.mark.parametrize("direction", published.DIRECTIONS)
def test_scores_and_the_loss_are_those_of_the_formulas(direction: str, norm: str) -> None:
    opt = published.options(direction, norm)
    images, captions = (side.float().to(DEVICE) for side in published.batch(lengths=LENGTHS))
    found = [side.clone().requires_grad_() for side in (images, captions)]
    exact = [side.double().cpu().requires_grad_() for side in (images, captions)]
    function = xattn_score_t2i if direction == "t2i" else xattn_score_i2t
    scores, expected = function(*found, list(LENGTHS), opt), published.scores(*exact, LENGTHS, opt)
    torch.testing.assert_close(scores.cpu().double(), expected, rtol=2e-4, atol=2e-5)
    ContrastiveLoss(opt, 0.2, max_violation=True)(*found, list(LENGTHS)).backward()
    published.loss(expected, 0.2, True).backward()
    for side, other in zip(found, exact, strict=True):
        torch.testing.assert_close(side.grad.cpu().double(), other.grad, rtol=2e-4, atol=2e-5)


def test_attention_stays_on_the_device() -> None:
    query, context = torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    opt = published.options("t2i")
    expected = func_attention(query, context, opt, 9.0)
    for one, other in zip(func_attention(query.to(DEVICE), context.to(DEVICE), opt, 9.0), expected, strict=True):
        assert one.is_cuda
        torch.testing.assert_close(one.cpu(), other)
