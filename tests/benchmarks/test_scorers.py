"""Scorers of the benchmark: what is timed beside each other are the same scores and gradients."""

from __future__ import annotations

import pytest
import torch

from benchmarks.scorers import CASES, inputs, step


@pytest.mark.parametrize("name", CASES)
def test_both_ways_are_the_same(name: str) -> None:
    both = zip(*(step(score, *inputs(5, torch.float64)) for score in CASES[name][:2]), strict=True)
    for ours, theirs in both:
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
