"""Drop-in scorers: every option reaches the operation, and an ensemble is a mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.scorers import CrossAttentionScorer, EnsembleScorer, SumMaxScorer
from crossret_kernels import MaxSimOptions, maxsim_scores, scan_scores
from tests.kernels.strategies import NORM_MODES, POOLINGS

REGION_LENGTHS, LENGTHS = torch.tensor([3, 5, 1]), torch.tensor([4, 2, 1, 3])


def features() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, 8, generator=random), torch.randn(4, 4, 8, generator=random)


options = st.fixed_dictionaries(
    {
        "direction": st.sampled_from(["t2i", "i2t"]),
        "raw_feature_norm": st.sampled_from(NORM_MODES),
        "clip_slope": st.sampled_from([0.0, 0.1, 0.3]),
        "lambda_softmax": st.sampled_from([1.0, 4.0, 9.0]),
        "pooling": st.sampled_from(POOLINGS),
        "lambda_lse": st.sampled_from([2.0, 6.0]),
        "normalize": st.booleans(),
    }
)


@given(options)
@settings(max_examples=40)
def test_scorers_score_with_their_options(chosen: dict[str, Any]) -> None:
    regions, words = features()
    scorer = CrossAttentionScorer(**chosen)
    expected = scan_scores(
        regions.double(), words.double(), REGION_LENGTHS, LENGTHS, **chosen, backend="reference"
    ).float()
    torch.testing.assert_close(scorer(regions, words, LENGTHS, REGION_LENGTHS), expected, rtol=1e-4, atol=1e-5)
    pairs = torch.tensor([[2, 1], [0, 3], [2, 1]])
    listed = scorer(regions, words, LENGTHS, REGION_LENGTHS, pairs=pairs)
    torch.testing.assert_close(listed, expected[pairs[:, 0], pairs[:, 1]], rtol=1e-4, atol=1e-5)
    sum_max = {name: chosen[name] for name in ("direction", "normalize")}
    expected = maxsim_scores(regions.double(), words.double(), REGION_LENGTHS, LENGTHS, **sum_max, backend="reference")
    scores = SumMaxScorer(**sum_max)(regions, words, LENGTHS, REGION_LENGTHS)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_without_region_lengths_every_image_has_all_its_regions() -> None:
    regions, words = features()
    for scorer in (CrossAttentionScorer(), SumMaxScorer(), EnsembleScorer([CrossAttentionScorer("i2t")])):
        assert torch.equal(scorer(regions, words, LENGTHS), scorer(regions, words, LENGTHS, torch.tensor([5, 5, 5])))


def test_an_ensemble_is_the_mean_of_its_scores() -> None:
    regions, words = features()
    parts = [CrossAttentionScorer("t2i"), CrossAttentionScorer("i2t", pooling="lse"), SumMaxScorer()]
    ensemble = EnsembleScorer(parts)
    expected = torch.stack([part(regions, words, LENGTHS, REGION_LENGTHS) for part in parts]).mean(0)
    torch.testing.assert_close(ensemble(regions, words, LENGTHS, REGION_LENGTHS), expected)
    pairs = torch.tensor([[1, 2]])
    torch.testing.assert_close(ensemble(regions, words, LENGTHS, REGION_LENGTHS, pairs=pairs), expected[[1], [2]])


def test_options_of_another_kind_are_told() -> None:
    cases: tuple[tuple[Any, Any, str], ...] = (
        (CrossAttentionScorer, MaxSimOptions(), "options must be ScanOptions, not MaxSimOptions"),
        (SumMaxScorer, {}, "options must be MaxSimOptions, not dict"),
    )
    for scorer, options, message in cases:
        with pytest.raises(TypeError, match=message):
            scorer(options=options)
