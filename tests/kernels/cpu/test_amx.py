"""The kernels of AMX on bfloat16 and split float32: emulated on any processor, and native where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores, scan_scores
from tests.kernels.holes import Holes
from tests.kernels.maxsim.checks import check_that_company_keeps_bits
from tests.kernels.strategies import (
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    listed_pairs,
    maxsim_options,
    scan_options,
)
from tests.kernels.tolerance import EPS, Expectation, cpu_isa, evaluate, score_weights, well_posed

HALVES = 2.0**-15  # of Σ |a| |b|: what the three products of a · b may lose, besides what float32 sums do
DTYPES = {"bfloat16": torch.bfloat16, "split float32": torch.float32}

isas = pytest.mark.parametrize("isa", [isa for isa in torch.ops.crossret.cpu_isas().split() if "amx" in isa])
directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


@contextmanager
def precision(name: str) -> Iterator[None]:
    """What torch.set_float32_matmul_precision allows meanwhile."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module", autouse=True)
def _split() -> Iterator[None]:
    """Float32 is split, which changes nothing of bfloat16."""
    with precision("high"):
        yield


def random_batch(regions: list[int], words: list[int], dim: int) -> Features:
    """Items of these lengths, whose contexts have something in common, so that attended vectors do not cancel."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(dim, generator=generator, dtype=torch.float64)
    sides = [
        torch.randn(len(lengths), max(lengths), dim, generator=generator, dtype=torch.float64) + common
        for lengths in (regions, words)
    ]
    return Features(sides[0], sides[1], torch.tensor(regions), torch.tensor(words), None)


def unit_of(dtype: torch.dtype, options: dict[str, Any]) -> float:
    """The tolerance rule's unit: of float32, or of its halves, λ times that once it is in the logits of attention.

    Twice, for a cosine and a logit are divided by norms of what lacks as much.
    """
    return 16 * EPS if dtype == torch.bfloat16 else 2 * HALVES * (1 + abs(options.get("lambda_softmax", 9.0)))


# --- bfloat16: products are exact, and sums in float32


@isas
@examples(8)
@given(batch=features(IN_HALF_RANGE), options=scan_options())
def test_attention_of_bfloat16(isa: str, batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.bfloat16).to(torch.float64)
    assume(well_posed(batch, options))
    Expectation.of(scan_scores, batch, torch.bfloat16, **options).check("cpu", isa)


@isas
@examples(8)
@given(batch=features(("none", "small", "all negative")), options=maxsim_options())
def test_sum_max_of_bfloat16(isa: str, batch: Features, options: dict[str, Any]) -> None:
    Expectation.of(maxsim_scores, batch, torch.bfloat16, **options).check("cpu", isa)


# --- items about the sixteen rows and columns of a tile, and features that fill none


TILES = [
    ([15, 17], [16, 33], 7),
    ([33, 1, 31], [32, 15], 65),
    ([40, 2, 9], [1, 1, 2], 130),
    ([3, 18], [17], 2100),  # products in several parts
]


@isas
@dtypes
@directions
@functions
@pytest.mark.parametrize(("regions", "words", "dim"), TILES)
def test_items_that_fill_tiles_and_that_do_not(
    function: Callable[..., Tensor],
    direction: str,
    dtype: torch.dtype,
    isa: str,
    regions: list[int],
    words: list[int],
    dim: int,
) -> None:
    options: dict[str, Any] = {"direction": direction, "normalize": (direction == "t2i") == (dim in (65, 2100))}
    batch = random_batch(regions, words, dim)
    Expectation.of(function, batch, dtype, unit=unit_of(dtype, options), **options).check("cpu", isa)


@isas
@dtypes
@directions
@functions
def test_more_rows_than_a_group_and_columns_than_a_block(
    function: Callable[..., Tensor], direction: str, dtype: torch.dtype, isa: str
) -> None:
    batch = random_batch([30, 36, 60, 5, 7, 33], [20, 1, 9, 210, 16, 12], 40)
    options: dict[str, Any] = {"direction": direction, "pooling": "avg"}
    with cpu_isa(isa):
        ours = evaluate(function, batch, dtype, backend="cpu", **options)
    exact = batch.to(dtype).to(torch.float64)
    truth = evaluate(function, exact, torch.float64, backend="reference", **options)
    bound = 1e-4 if function is scan_scores else 1e-3
    torch.testing.assert_close(ours[0], truth[0], rtol=0, atol=bound)
    if function is scan_scores or dtype == torch.bfloat16:
        for grad, true in zip(ours[1:], truth[1:], strict=True):
            scale = float(true.abs().max())
            torch.testing.assert_close(grad, true, rtol=0, atol=(2e-3 if dtype == torch.float32 else 1e-2) * scale)


# --- pairs, masks, empty items, argmax


@isas
@dtypes
@directions
@functions
def test_pairs_and_masks(function: Callable[..., Tensor], direction: str, dtype: torch.dtype, isa: str) -> None:
    batch = random_batch([15, 17, 3, 16], [33, 1, 16], 37).to(dtype)
    pairs = listed_pairs(batch)
    options: dict[str, Any] = {"direction": direction, "backend": "cpu", "normalize": True}
    holes = [
        Holes.of(values, lengths, seed)
        for seed, (values, lengths) in enumerate(zip((batch.regions, batch.words), batch.lengths, strict=True))
    ]
    leaves = [[x.detach().clone().requires_grad_() for x in (batch.regions, batch.words)] for _ in range(2)]
    masked = [side.values.clone().requires_grad_() for side in holes]
    masks = {"region_mask": holes[0].mask, "word_mask": holes[1].mask}
    with cpu_isa(isa):
        whole = function(*leaves[0], *batch.lengths, **options)
        listed = function(*leaves[1], *batch.lengths, pairs=pairs, **options)
        of_masks = function(*masked, **masks, **options)
        assert torch.equal(of_masks, whole)
        # Of listed pairs ‖attended‖ may be made in another form.
        tolerance = 1e-5 if function is scan_scores else 0.0
        torch.testing.assert_close(listed, whole[pairs[:, 0], pairs[:, 1]], rtol=0, atol=tolerance)
        weights = score_weights(listed.shape).to(listed)
        together = torch.zeros_like(whole).index_put((pairs[:, 0], pairs[:, 1]), weights, accumulate=True)
        (listed * weights).sum().backward()
        (whole * together).sum().backward()
        (of_masks * together).sum().backward()
    rounding = 2.0**-6 if dtype == torch.bfloat16 else 1e-4
    for first, second, hole, own in zip(leaves[0], leaves[1], holes, masked, strict=True):
        assert first.grad is not None
        assert second.grad is not None
        assert own.grad is not None
        torch.testing.assert_close(second.grad, first.grad, rtol=0, atol=rounding * float(first.grad.abs().max()))
        lengths = hole.mask.sum(1)
        valid = torch.arange(first.size(1)) < lengths[:, None]
        assert torch.equal(own.grad[hole.mask], first.grad[valid])
        assert own.grad[~hole.mask].count_nonzero() == 0


@isas
@dtypes
@directions
def test_of_equal_maxima_the_first_is_the_argmax(direction: str, dtype: torch.dtype, isa: str) -> None:
    """Small whole numbers, of which halves are exact."""
    generator = torch.Generator().manual_seed(1)
    regions = torch.randint(-1, 2, (5, 35, 4), generator=generator).to(dtype)
    words = torch.randint(-1, 2, (7, 40, 4), generator=generator).to(dtype)
    similarities = torch.einsum("ird,cwd->icrw", regions.float(), words.float())
    expected = torch.from_numpy(similarities.numpy().argmax(-2 if direction == "t2i" else -1))
    with cpu_isa(isa):
        scores, argmax = maxsim_argmax(regions, words, direction=direction, backend="cpu")
    assert torch.equal(argmax, expected)
    assert torch.equal(scores, similarities.amax(-2 if direction == "t2i" else -1).sum(-1))


@isas
@dtypes
@directions
def test_nan_and_infinity_reach_their_own_items_only(direction: str, dtype: torch.dtype, isa: str) -> None:
    for function in (scan_scores, maxsim_scores):
        for bad in (torch.nan, torch.inf):
            batch = random_batch([17, 16, 33], [5, 18, 16, 1], 35).to(dtype)
            dirty = batch.to(dtype)
            dirty = Features(dirty.regions.clone(), dirty.words.clone(), *dirty.lengths, None)
            dirty.regions[1, 3, 2] = bad
            dirty.words[2, 15, 34] = bad
            with cpu_isa(isa):
                clean = function(*batch.arguments(), direction=direction, backend="cpu")
                scores = function(*dirty.arguments(), direction=direction, backend="cpu")
            hit = torch.zeros(3, 4, dtype=torch.bool)
            hit[1], hit[:, 2] = True, True
            assert torch.equal(scores[~hit], clean[~hit])
            if bad != bad or function is scan_scores:
                assert scores[hit].isnan().all()


# --- a pair's score is its own


@isas
@dtypes
@examples(15)
@given(batch=features(), options=maxsim_options(), data=st.data())
def test_sum_max_keeps_its_bits_in_any_company(
    isa: str, dtype: torch.dtype, batch: Features, options: dict[str, Any], data: st.DataObject
) -> None:
    with cpu_isa(isa):
        check_that_company_keeps_bits(batch.to(dtype), options, data)
