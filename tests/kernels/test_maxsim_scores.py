"""`maxsim_scores` of every backend, instruction set and dtype against the float64 oracle, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from crossret_kernels import maxsim_scores
from tests.kernels.strategies import DEGENERACIES, Features, features, maxsim_options
from tests.kernels.tolerance import Expectation, cpu_isa, evaluate

ISAS = torch.ops.crossret.cpu_isas().split()
# Of equal similarities rounding picks the maximum, and gradients go there: ties have their own test.
UNTIED = tuple(kind for kind in DEGENERACIES if kind not in ("duplicates", "zero region", "zero word"))


@settings(max_examples=100)
@given(batch=features(UNTIED), options=maxsim_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    expected = Expectation.of(maxsim_scores, batch, torch.float32, **options)
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@settings(max_examples=20)
@given(batch=features(("none", "small")), options=maxsim_options())
def test_half_precision_features(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    expected = Expectation.of(maxsim_scores, batch, dtype, **options)
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("pooling", ["sum", "avg", "max"])
def test_of_equal_maxima_the_first_gets_the_gradient(isa: str, direction: str, pooling: str) -> None:
    """Small whole numbers: every similarity is exact, so ties are ties on every backend."""
    generator = torch.Generator().manual_seed(0)
    regions = torch.randint(-2, 3, (4, 19, 5), generator=generator).double()
    words = torch.randint(-2, 3, (6, 21, 5), generator=generator).double()
    lengths = [torch.randint(1, n + 1, (count,), generator=generator) for n, count in ((19, 4), (21, 6))]
    batch = Features(regions, words, *lengths, None)
    expected = evaluate(maxsim_scores, batch, torch.float64, backend="reference", direction=direction, pooling=pooling)
    with cpu_isa(isa):
        actual = evaluate(maxsim_scores, batch, torch.float32, backend="cpu", direction=direction, pooling=pooling)
    for ours, true in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-6, atol=1e-5)
