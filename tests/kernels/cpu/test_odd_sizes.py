"""Items far shorter and longer than usual, and lengths of features that fill no vector, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.cross_attention import op
from tests.kernels.strategies import Features
from tests.kernels.tolerance import ISAS, Expectation

OPTIONS = {scan_scores: {"raw_feature_norm": "clipped_l2norm", "pooling": "lse"}, maxsim_scores: {"pooling": "sum"}}


@pytest.mark.parametrize(
    ("n_regions", "n_words", "dim"),
    [(1, 1, 96), (1, 80, 300), (100, 1, 2048), (100, 80, 301), (1, 7, 2048), (40, 40, 1100), (37, 13, 2)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
@pytest.mark.parametrize("function", OPTIONS)
def test_odd_sizes(
    function: Callable[..., Tensor], direction: str, dtype: torch.dtype, n_regions: int, n_words: int, dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(op, "one_product_serves", lambda _: True)
    generator = torch.Generator().manual_seed(0)
    regions, words = (torch.randn(3, n, dim, generator=generator, dtype=torch.float64) for n in (n_regions, n_words))
    lengths = [torch.tensor([n, (n + 1) // 2, 1]) for n in (n_regions, n_words)]
    batch = Features(regions, words, lengths[0], lengths[1], None)
    options = {"direction": direction, "normalize": True, **OPTIONS[function]}
    expected = Expectation.of(function, batch, dtype, **options)
    for isa in ISAS:
        expected.check("cpu", isa)
