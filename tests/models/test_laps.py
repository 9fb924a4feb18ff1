"""LAPS against its formulas, written pair by pair in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.models import Laps, LapsConfig
from tests.models.batch import LENGTHS, REGION_LENGTHS, double, encode, items, make

pytestmark = pytest.mark.usefixtures("one_thread")

VARIANTS: dict[str, dict[str, Any]] = {
    "half": {},
    "third": {"keep_ratio": 0.3},
    "all": {"keep_ratio": 1.0},
    "global": {"global_token": True},
    "no slope": {"clip_slope": 0.0, "aggregated": 1},
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def tokens_of(model: Laps, regions: Tensor, words: Tensor) -> Tensor:
    """(T, D): global token, aggregated ones, fused one, of one image and one caption; LAPS §3.2, §3.3."""
    config = model.config
    first, patches = (regions[:1], regions[1:]) if config.global_token else (regions[:0], regions)
    kept = math.ceil(len(patches) * config.keep_ratio)
    with torch.no_grad():
        sums = unit(patches) @ unit(patches.mean(0)) + unit(patches) @ unit(words.mean(0))
    if not len(patches):
        return first
    order = sums.sort(descending=True).indices
    logits = model.slimming.aggregation(patches[order[:kept]]) * model.slimming.scale
    made = [first, torch.softmax(logits, 0).T @ patches[order[:kept]]]
    if kept < len(patches):
        made.append((torch.softmax(sums[order[kept:]], 0) @ patches[order[kept:]])[None])
    return torch.cat(made)


def by_hand(model: Laps, regions: Tensor, words: Tensor) -> Tensor:
    s = unit(tokens_of(model, regions, words)) @ unit(words).T
    s = torch.where(s > 0, s, model.config.clip_slope * s)
    return s.max(1).values.mean() + s.max(0).values.mean()


def exact(variant: str) -> tuple[Laps, list[Tensor], list[Tensor], Any]:
    model = double(make("laps", **VARIANTS[variant]))
    images, captions = encode(model)
    regions, words = items(images.sequences, REGION_LENGTHS), items(captions.sequences, LENGTHS)
    return model, regions, words, (images, captions)


@EVERY_VARIANT
def test_scores_and_gradients_are_those_of_the_formulas(variant: str) -> None:
    """Of which the sums that patches are chosen by get none."""
    model, regions, words, sides = exact(variant)
    weights = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    gradients = []
    expected = torch.stack([torch.stack([by_hand(model, v, e) for e in words]) for v in regions])
    found = model.score(*sides)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for scores in (found, expected):
        model.zero_grad()
        (scores * weights).sum().backward(retain_graph=True)
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_no_images_or_no_captions_have_no_scores() -> None:
    """As a process that trains with others has none, whose parameters take part in the gradients all the same."""
    model, _, _, (images, captions) = exact("half")
    for some, others in ((images[:0], captions), (images, captions[:0]), (images[:0], captions[:0])):
        scores = model.score(some, others)
        assert scores.shape == (len(some), len(others))
        scores.sum().backward(retain_graph=True)
    assert model.score(images, captions, torch.empty(0, 2, dtype=torch.int64)).shape == (0,)


def test_scores_under_autocast_are_float32() -> None:
    model = make("laps")
    expected = model.score(*encode(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model.score(*encode(model))
    assert scores.dtype is torch.float32
    torch.testing.assert_close(scores, expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("size", [1, 2])
def test_blocks_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _, sides = exact("half")
    whole = model.score(*sides)
    monkeypatch.setattr(Laps, "_bytes_per_pair", lambda *_: 2**25 // size)  # so many pairs a block
    torch.testing.assert_close(model.score(*sides), whole, rtol=1e-12, atol=1e-12)


def test_words_look_at_what_their_token_is_made_of() -> None:
    model, regions, words, sides = exact("half")
    t2i, _ = model.attention(*sides)
    for pair, (v, e) in enumerate(zip(regions, words, strict=True)):
        tokens = tokens_of(model, v, e)
        best = (unit(tokens) @ unit(e).T).max(0).indices
        looked_at = t2i.weights[pair, : len(e), : len(v)] @ v
        torch.testing.assert_close(looked_at, tokens[best], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep_ratio": 1.5}, "keep_ratio must be at most 1, not 1.5"),
        ({"keep_ratio": 0.0}, "keep_ratio must be"),
        ({"clip_slope": -0.1}, "clip_slope must be"),
    ],
)
def test_fields_out_of_range_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LapsConfig(image_dim=6, vocabulary_size=11, **fields)
