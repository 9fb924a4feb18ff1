"""`Expectation.check_faults` asks where a bound can tell a fault from rounding, and there alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from crossret_kernels import scan_scores
from tests.kernels.cross_attention.kernels import batch_of
from tests.kernels.tolerance import Expectation, RoundedProducts, evaluate

OPTIONS: dict[str, Any] = {"raw_feature_norm": "softmax", "pooling": "lse", "lambda_lse": 0.1}


def test_bounds_that_let_a_fault_pass_are_found() -> None:
    honest = Expectation.of(scan_scores, batch_of(2, 3), torch.float32, **OPTIONS)
    honest.check_faults()
    for side in (1, 2):
        loose = [*honest.bounds]
        loose[side] = loose[side] + honest.truth[side].abs().max()  # a gradient left out lies within
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            replace(honest, bounds=(loose[0], loose[1], loose[2])).check_faults()


def test_gradients_that_are_rounding_are_not_asked_for() -> None:
    """Of one pair below the cosine's least denominator: turned round, they lie within what rounding may come to."""
    batch = batch_of(1, 1, 100, (5, 28))
    batch = replace(batch, regions=batch.regions * 1e-6, words=batch.words * 1e-5)
    tiny = Expectation.of(scan_scores, batch, torch.float32, lambda_softmax=100.0, **OPTIONS)
    tiny.accept((tiny.truth[0], tiny.truth[1], -tiny.truth[2]), "words turned round")
    tiny.check_faults()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        replace(tiny, floors=(0.0, 0.0)).check_faults()


def test_rounded_products_move_what_is_normalised() -> None:
    """In proportion, and more where λ multiplies them."""
    batch, moved = batch_of(2, 3), {}
    for unit, scale in ((1e-6, 1.0), (1e-5, 1.0), (1e-6, 100.0)):
        options = {"normalize": True, "raw_feature_norm": "no_norm", "lambda_softmax": scale}
        true = evaluate(scan_scores, batch, torch.float64, backend="reference", **options)
        with RoundedProducts(unit, 0):
            made = evaluate(scan_scores, batch, torch.float64, backend="reference", **options)
        moved[unit, scale] = [float((own - other).abs().max()) for own, other in zip(made, true, strict=True)]
    usual, more, steeper = moved.values()
    assert all(5 * a < b < 20 * a and a > 0 for a, b in zip(usual, more, strict=True))
    assert steeper[0] > usual[0]
