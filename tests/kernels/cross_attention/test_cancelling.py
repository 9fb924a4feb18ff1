"""Contexts that cancel: ‖Σ p c‖ keeps its digits, however little of the contexts' lengths it is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels import scan_scores
from tests.kernels.strategies import Features
from tests.kernels.tolerance import ISAS, Expectation

DIM = 1024
UNIFORM = {"raw_feature_norm": "no_norm", "lambda_softmax": 1.0, "pooling": "lse"}  # of queries as short as ours
pytestmark = pytest.mark.usefixtures("one_thread")


def opposed(part: float, pairs: int) -> Tensor:
    """Items (6, 2·pairs, D) of nearly opposed pairs: ‖Σ c‖² is about `part` of Σ ‖c‖²."""
    generator = torch.Generator().manual_seed(0)
    rows, rest = torch.randn(2, 6, pairs, DIM, generator=generator, dtype=torch.float64)
    return torch.cat([rows, math.sqrt(2 * part) * rest - rows], 1) / math.sqrt(DIM)


def centred(part: float, n: int) -> Tensor:
    """Items (6, n, D) of contexts in all directions, but ‖Σ c‖² is about `part` of Σ ‖c‖²."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, n, DIM, generator=generator, dtype=torch.float64) / math.sqrt(DIM)
    common = F.normalize(torch.randn(6, 1, DIM, generator=generator, dtype=torch.float64), dim=-1)
    return rows - rows.mean(1, keepdim=True) + math.sqrt(part / n) * common


def undone(n: int) -> Tensor:
    """Items (6, n, D) whose every context undoes the sum of those before it, but for a right angle.

    A fifteenth of its square is no combination of those before it: no two are nearly opposed, and yet ‖Σ c‖² is 14ⁿ⁻¹
    times less than the first one's.
    """
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(6, DIM, n, generator=generator, dtype=torch.float64))[0].mT
    lengths = 14.0 ** (-0.5 * torch.arange(n, dtype=torch.float64))
    sums = lengths[:, None] * directions
    return torch.cat([sums[:, :1], sums.diff(dim=1)], 1)


CANCELLING = {
    **{f"opposed, 1/{whole}": opposed(1 / whole, 1) for whole in (16, 64, 256, 1024, 4096)},
    "opposed, many": opposed(1 / 1024, 9),
    "centred": centred(1 / 1024, 8),
    "undone, 3": undone(3),
    "undone, 4": undone(4),
}


@pytest.mark.parametrize("name", CANCELLING)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_contexts_that_cancel(direction: str, name: str) -> None:
    """Gram matrices of float32 would be too coarse for all of these but the first."""
    contexts = CANCELLING[name]
    generator = torch.Generator().manual_seed(1)
    attended = F.normalize(contexts.sum(1), dim=-1)[torch.randint(0, 6, (16, 12), generator=generator)]
    # In part along what they attend to, or their relevances would be small and so would errors; short, so that weights
    # are alike.
    queries = attended + torch.randn(16, 12, DIM, generator=generator, dtype=torch.float64) / math.sqrt(DIM)
    sides = (contexts, 1e-2 * queries) if direction == "t2i" else (1e-2 * queries, contexts)
    batch = Features(*sides, *(torch.full((len(side),), side.size(1)) for side in sides), None)
    expected = Expectation.of(scan_scores, batch, torch.float32, direction=direction, **UNIFORM)
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)
