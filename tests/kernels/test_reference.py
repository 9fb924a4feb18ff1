"""The einsum oracle against the paper's formulas, written out per pair in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels import oracle
from tests.kernels.strategies import DIRECTIONS, Features, examples, features, maxsim_options, scan_options


def _pairs(batch: Features) -> list[tuple[np.ndarray, np.ndarray]]:
    regions = [v[:n].numpy() for v, n in zip(batch.regions, batch.region_lengths.tolist(), strict=True)]
    words = [e[:n].numpy() for e, n in zip(batch.words, batch.word_lengths.tolist(), strict=True)]
    if batch.pairs is None:
        return [(v, e) for v in regions for e in words]
    return [(regions[i], words[c]) for i, c in batch.pairs.tolist()]


@examples(150)
@given(batch=features(), options=scan_options(directions=(*DIRECTIONS, "both")))
def test_scan_scores_follow_the_paper(batch: Features, options: dict[str, Any]) -> None:
    expected = torch.tensor([oracle.scan_score(v, e, **options) for v, e in _pairs(batch)], dtype=torch.float64)
    scores = scan_scores(*batch.arguments(), pairs=batch.pairs, backend="reference", **options)
    torch.testing.assert_close(scores.flatten(), expected, rtol=1e-9, atol=1e-9)


@examples(50)
@given(batch=features(), options=maxsim_options(soft=True))
def test_maxsim_scores_follow_the_paper(batch: Features, options: dict[str, Any]) -> None:
    expected = torch.tensor([oracle.maxsim_score(v, e, **options) for v, e in _pairs(batch)], dtype=torch.float64)
    scores = maxsim_scores(*batch.arguments(), pairs=batch.pairs, backend="reference", **options)
    torch.testing.assert_close(scores.flatten(), expected, rtol=1e-9, atol=1e-9)
