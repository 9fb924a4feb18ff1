"""`scan_attend` and `scan_attention`: all that they return against the paper, and its gradients, by every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import ScanAttended, scan_attend, scan_attention, scan_scores
from crossret_kernels.padded.arithmetic import safe_normalize
from tests.kernels import oracle
from tests.kernels.strategies import (
    DIRECTIONS,
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    scan_options,
)
from tests.kernels.tolerance import DEFAULTS, ISAS, Expectation, least_attended, well_posed

IN_TORCH = ("torch", "reference")
BACKENDS = ("cpu", *IN_TORCH)
backends = pytest.mark.parametrize("backend", BACKENDS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def every_pair(batch: Features) -> Tensor:
    return torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).view(-1, 2)


def attention(batch: Features, layout: str = "padded", **options: Any) -> ScanAttended:
    pairs = every_pair(batch) if batch.pairs is None else batch.pairs
    return scan_attend(*batch.arguments(layout), pairs=pairs, **options)


def expected_attention(batch: Features, layout: str, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Attended vectors, weights and relevances of `oracle`, at the width that the layout promises."""
    options = {name: value for name, value in options.items() if name not in ("pooling", "lambda_lse")}
    pairs = every_pair(batch) if batch.pairs is None else batch.pairs
    padded = (batch.regions.size(1), batch.words.size(1))
    longest = tuple(int(lengths.max()) for lengths in batch.lengths)
    n_regions, n_words = padded if layout == "padded" else longest
    q, c = (n_words, n_regions) if options["direction"] == "t2i" else (n_regions, n_words)
    weights = torch.zeros(len(pairs), q, c, dtype=torch.float64)
    relevances = torch.zeros(len(pairs), q, dtype=torch.float64)
    attended = torch.zeros(len(pairs), q, batch.regions.size(-1), dtype=torch.float64)
    for place, (image, caption) in enumerate(pairs.tolist()):
        v = batch.regions[image, : batch.region_lengths[image]].double().numpy()
        e = batch.words[caption, : batch.word_lengths[caption]].double().numpy()
        true_weights, true_relevances = oracle.scan_attention(v, e, **options)
        weights[place, : true_weights.shape[0], : true_weights.shape[1]] = torch.from_numpy(true_weights)
        relevances[place, : true_relevances.shape[0]] = torch.from_numpy(true_relevances)
        contexts = torch.from_numpy(v if options["direction"] == "t2i" else e)
        contexts = safe_normalize(contexts) if options["normalize"] else contexts
        attended[place, : true_weights.shape[0]] = torch.from_numpy(true_weights) @ contexts
    return attended, weights, relevances


@examples(100)
@given(batch=features(), options=scan_options(), layout=st.sampled_from(("padded", "packed", "list")))
def test_attention_follows_the_paper(batch: Features, options: dict[str, Any], layout: str) -> None:
    attended, weights, relevances = expected_attention(batch, layout, **options)
    # Of what cancels rounding is left, which the cosine divides by 1e-8.
    least = 1e-7 if least_attended(batch, options) > 1e-7 else 1e-5
    for backend in IN_TORCH:
        made = attention(batch, layout, backend=backend, **options)
        size = max(1.0, float(attended.abs().max()))
        torch.testing.assert_close(made.attended, attended, rtol=1e-9, atol=1e-9 * size)
        torch.testing.assert_close(made.weights, weights, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(made.relevances, relevances, rtol=1e-6, atol=least)
        pairs = every_pair(batch) if batch.pairs is None else batch.pairs
        call: dict[str, Any] = {"pairs": pairs, "backend": backend, **options}
        assert torch.equal(made.scores, scan_scores(*batch.arguments(layout), **call))
        torch.testing.assert_close(made[::2], scan_attention(*batch.arguments(layout), **call)[:2], rtol=0, atol=0)


def result_of(name: str, whole: bool) -> Any:
    """One of the results as a function of its own, of all pairs where there are none; without attended vectors else."""

    def function(regions: Tensor, words: Tensor, *lengths: Any, pairs: Tensor | None, **options: Any) -> Tensor:
        every = torch.cartesian_prod(torch.arange(len(regions)), torch.arange(len(words)))
        made = (scan_attend if whole else scan_attention)(
            regions, words, *lengths, pairs=every if pairs is None else pairs, **options
        )
        return getattr(made, name)

    return function


def alike() -> Features:
    """Nine regions that are one: rounding alone moves its weights."""
    generator = torch.Generator().manual_seed(29)
    region, words = (torch.randn(n, 1, 100, generator=generator).double() for n in (1, 3))
    return Features(region.repeat(1, 9, 1), words, torch.tensor([9]), torch.tensor([1, 1, 1]), torch.tensor([[0, 1]]))


ALIKE = {"raw_feature_norm": "clipped", "lambda_softmax": 0.9, "clip_slope": 0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@example(batch=alike(), options={**DEFAULTS, **ALIKE}, result="attended", whole=True)
@examples(60)
@given(
    batch=features(IN_HALF_RANGE),
    options=scan_options(),
    result=st.sampled_from(("scores", "attended", "weights", "relevances")),
    whole=st.booleans(),
)
def test_kernels_and_their_gradients(
    dtype: torch.dtype, batch: Features, options: dict[str, Any], result: str, whole: bool
) -> None:
    """Each result with the gradients through it alone, as far from float64 as eager PyTorch is."""
    batch = batch.to(dtype).to(torch.float64)
    assume(well_posed(batch, options))
    expected = Expectation.of(result_of(result, whole or result == "attended"), batch, dtype, **options)
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@backends
@directions
def test_nan_stays_in_its_pairs_and_padding_is_never_read(direction: str, backend: str) -> None:
    batch = Features(randn(2, 4, 8), randn(3, 5, 8, seed=1), torch.tensor([4, 2]), torch.tensor([5, 1, 3]), None)
    clean = attention(batch, direction=direction, backend=backend)
    regions, words = batch.regions.clone(), batch.words.clone()
    regions[1, 2:] = torch.nan
    words[1, 1:] = torch.inf
    padding = replace(batch, regions=regions, words=words)
    torch.testing.assert_close(attention(padding, direction=direction, backend=backend), clean, rtol=0, atol=0)
    words = words.clone()
    words[2, 1] = torch.nan
    outputs = attention(replace(padding, words=words), direction=direction, backend=backend)
    sick = every_pair(batch)[:, 1] == 2
    for ours, theirs in zip(outputs, clean, strict=True):
        assert torch.equal(ours[~sick], theirs[~sick])
        assert ours[sick].isnan().reshape(int(sick.sum()), -1).any(1).all()


@backends
@pytest.mark.parametrize("no_rows", [False, True])
def test_no_pairs(no_rows: bool, backend: str) -> None:
    regions = randn(2, 3, 4).requires_grad_()
    words = (torch.zeros(0, 0, 4) if no_rows else randn(2, 5, 4)).requires_grad_()
    outputs = scan_attend(
        regions,
        words,
        pairs=torch.zeros(0, 2, dtype=torch.int64),
        pooling="max",
        backend=backend,
    )
    width = 1 if no_rows else 5
    assert [output.shape for output in outputs] == [(0,), (0, width, 4), (0, width, 3), (0, width)]
    gradients = torch.autograd.grad([output.sum() for output in outputs], (regions, words))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


def test_many_pairs_in_chunks_are_the_pairs_one_by_one() -> None:
    regions, words = randn(3, 30, 256), randn(4, 20, 256, seed=1)
    lengths = ([30, 4, 17], [20, 1, 9, 12])
    pairs = torch.stack([torch.arange(300) % 3, torch.arange(300) % 4], 1)
    outputs = scan_attend(regions, words, *lengths, pairs=pairs)
    for index in (0, 150, 299):
        alone = scan_attend(regions, words, *lengths, pairs=pairs[index : index + 1])
        for many, one in zip(outputs, alone, strict=True):
            torch.testing.assert_close(many[index], one[0], rtol=0, atol=1e-6)


@directions
@pytest.mark.parametrize("layout", ["packed", "list"])
def test_items_that_no_pair_lists_count_for_the_widths_alone(layout: str, direction: str) -> None:
    """Scores, weights and gradients are those of a batch of the listed items, and the others' gradients are zero."""
    sizes, listed = [2, 9, 4, 1], [2, 0]
    sides = [[randn(size, 8, seed=seed + 10 * size).requires_grad_() for size in sizes] for seed in (0, 1)]
    pairs = torch.tensor([[2, 0], [0, 0], [2, 2]])

    def laid_out(side: list[Tensor]) -> Any:
        ends = torch.tensor([0, *(len(item) for item in side)]).cumsum(0)
        return side if layout == "list" else (torch.cat(side), ends)

    ours = scan_attend(*map(laid_out, sides), pairs=pairs, direction=direction)
    some = [[side[place] for place in listed] for side in sides]
    places = torch.tensor([[0, 1], [1, 1], [0, 0]])
    theirs = scan_attend(*map(laid_out, some), pairs=places, direction=direction)
    assert ours.weights.shape == (3, 9, 9)
    torch.testing.assert_close(ours.scores, theirs.scores)
    torch.testing.assert_close(ours.attended[:, :4], theirs.attended)
    torch.testing.assert_close(ours.weights[:, :4, :4], theirs.weights)
    torch.testing.assert_close(ours.relevances[:, :4], theirs.relevances)
    items = [item for side in sides for item in side]
    gradients = [
        torch.autograd.grad(sum(output.square().sum() for output in outputs), items, materialize_grads=True)
        for outputs in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients)
    assert not gradients[0][1].any()
