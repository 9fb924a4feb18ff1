"""`triplet_loss` by backend "triton" against "torch" in float64: values, gradients, NaN, opcheck."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crossret_kernels.gpu.tuning import ScoreLoss
from tests.interpreted.programs import programs_share_nothing
from tests.kernels.ranking_loss.checks import Kernels, check_gradients

IDS = [number % 60 for number in range(200)]
CASES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (70, 70, {"negatives": "hardest"}),
    (70, 200, {"negatives": "hardest", "positive_offset": 65, "image_ids": IDS, "reduction": "none"}),
    (70, 70, {"negatives": "sum", "reduction": "mean"}),
    (40, 200, {"negatives": "sum", "positive_offset": 160, "caption_ids": IDS, "image_ids": IDS[::-1]}),
    (70, 70, {"negatives": "softmax", "reduction": "none"}),
    (40, 200, {"negatives": "softmax", "p": 1.5, "positive_offset": 1, "caption_ids": IDS}),
    (33, 33, {"negatives": "softmax", "p": 1.0}),
    (33, 33, {"negatives": "softmax", "p": 1000.0}),
    (1, 1, {"negatives": "softmax"}),
    (1, 3, {"positive_offset": 2}),
    (0, 2, {"reduction": "mean"}),
)


@pytest.mark.parametrize(("n_rows", "n_columns", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_agrees_with_the_chain(
    n_rows: int, n_columns: int, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eighths, of which hinges are exact and many tie; in float16 by two programs that have two blocks of rows each.

    Sums of more than 33 losses are then PyTorch's.
    """
    if dtype == torch.float16:
        monkeypatch.setattr(ScoreLoss, "PROGRAMS", 2)
        monkeypatch.setattr(ScoreLoss, "SUMMED", 33)
    generator = torch.Generator().manual_seed(n_rows)
    scores = (torch.randn(n_rows, n_columns, generator=generator) * 4).round() / 8
    scores = scores.T.contiguous().T if n_rows == 33 else scores
    with programs_share_nothing():
        check_gradients(scores, {"margin": 0.25, **options}, dtype, "triton", unit=2e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
class TestKernels(Kernels):
    @pytest.fixture
    def backend(self) -> str:
        return "triton"


def test_gradients_past_two_to_the_31() -> None:
    """Losses' gradients lie 2³⁰ elements apart in memory that is never touched in between."""
    grads = torch.empty(2**31 + 1, dtype=torch.float16)[:: 2**30]
    grads.copy_(torch.tensor([1.0, 2.0, 4.0]))
    options = (0.2, 0, 8.0, 2, 0)
    _losses, statistics = torch.ops.crossret.triplet_loss_triton(torch.eye(3), None, None, *options)
    gradient = torch.ops.crossret.triplet_loss_triton_backward
    found, near = (gradient(x, statistics, torch.eye(3), None, None, *options) for x in (grads, grads.contiguous()))
    assert torch.equal(found, near)
