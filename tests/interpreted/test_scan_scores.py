"""`scan_scores` by backend "triton" against the float64 oracle, forward and backward, in many small tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention import tiling
from tests.kernels.strategies import Features, examples, features, scan_options
from tests.kernels.test_scan_scores import IN_HALF_RANGE, well_posed
from tests.kernels.tolerance import Expectation


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Any:
    """So that a few items take several tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "SMALL", 16)
        yield


@examples(60)
@given(batch=features(), options=scan_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    Expectation.of(scan_scores, batch, torch.float32, **options).check("triton")


@examples(30)
@given(batch=features(IN_HALF_RANGE), options=scan_options())
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.float16).to(torch.float64)
    assume(well_posed(batch, options))
    Expectation.of(scan_scores, batch, torch.float16, **options).check("triton")
