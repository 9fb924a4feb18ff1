"""`infonce_loss` and `sigmoid_loss` by backend "triton" against formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crossret_kernels.gpu.tuning import ScoreLoss
from tests.interpreted.programs import programs_share_nothing
from tests.kernels.contrastive_loss.checks import Kernels, both_losses, check_close

IDS = [number % 60 for number in range(200)]
CASES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (70, 70, {}),
    (70, 200, {"positive_offset": 65, "image_ids": IDS, "reduction": "none"}),
    (40, 200, {"positive_offset": 160, "caption_ids": IDS, "image_ids": IDS[::-1]}),
    (33, 33, {"reduction": "sum", "label_smoothing": 0.1}),
    (1, 1, {"label_smoothing": 0.1}),
    (1, 3, {"positive_offset": 2, "reduction": "none"}),
    (0, 2, {}),
)


@both_losses
@pytest.mark.parametrize(("n_rows", "n_columns", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_agrees_with_the_formulas(
    name: str, n_rows: int, n_columns: int, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 by two programs that have two blocks of rows each; some pairs are left out."""
    if dtype == torch.float16:
        monkeypatch.setattr(ScoreLoss, "PROGRAMS", 2)
    generator = torch.Generator().manual_seed(n_rows)
    scores = (torch.randn(n_rows, n_columns, generator=generator, dtype=torch.float64) * 16).round() / 16
    scores[::3, ::4] = -torch.inf
    scores = scores.T.contiguous().T if n_rows == 33 else scores
    numbers: tuple[float, ...] = (5.0,)
    if name == "sigmoid":
        numbers, options = (5.0, -10.0), {key: x for key, x in options.items() if key != "label_smoothing"}
    with programs_share_nothing():
        check_close(name, scores, numbers, dtype, "triton", **options)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
class TestKernels(Kernels):
    @pytest.fixture
    def backend(self) -> str:
        return "triton"
