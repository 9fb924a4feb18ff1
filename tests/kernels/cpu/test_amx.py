"""The kernels of AMX, whose tiles multiply bfloat16 and float32 as three products of its halves: emulated on any
processor, and native where there is one.
"""

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
from tests.kernels.maxsim.checks import check_that_company_keeps_bits, exact_similarities
from tests.kernels.strategies import (
    IN_HALF_RANGE,
    RELEVANCES,
    Features,
    examples,
    features,
    listed_pairs,
    maxsim_options,
    scan_options,
)
from tests.kernels.tolerance import EPS, Expectation, cpu_isa, evaluate, score_weights, well_posed

NATIVE = torch.ops.crossret.cpu_isas().split()
# What float32 runs as with the vectors of these instruction sets, where it is not split.
OF_VECTORS = {"amx": "avx512", "amx_emulated": "base"}
HALVES = 2.0**-15  # of Σ |a| |b|: what the three products of a · b may lose, besides what float32 sums do
DTYPES = {"bfloat16": torch.bfloat16, "split float32": torch.float32}

isas = pytest.mark.parametrize(
    "isa",
    [
        "amx_emulated",
        pytest.param("amx", marks=pytest.mark.skipif("amx" not in NATIVE, reason="this processor has no AMX")),
    ],
)
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


@pytest.fixture
def _split() -> Iterator[None]:
    with precision("high"):
        yield


splits = pytest.mark.usefixtures("_split")


def random_batch(
    regions: list[int], words: list[int], dim: int, pairs: Tensor | None = None, *, seed: int = 0
) -> Features:
    """Items of these lengths, whose contexts have something in common, so that attended vectors do not cancel."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(dim, generator=generator, dtype=torch.float64)
    sides = [
        torch.randn(len(lengths), max(lengths), dim, generator=generator, dtype=torch.float64) + common
        for lengths in (regions, words)
    ]
    return Features(sides[0], sides[1], torch.tensor(regions), torch.tensor(words), pairs)


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
@splits
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
@splits
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
@splits
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
@splits
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
@splits
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
    with cpu_isa(isa), precision("high"):
        check_that_company_keeps_bits(batch.to(dtype), options, data)


# --- float32 as three products of halves: x = h + l + e of bfloat16 h and l, |l| ≤ 2⁻⁸ |x| and |e| ≤ 2⁻¹⁷ |x|, so that
# of each a · b the products h·h + h·l + l·h lack no more than (2⁻¹⁶ + 2 · 2⁻¹⁷) |a| |b| = 2⁻¹⁵ |a| |b|


def similarity_bounds(batch: Features, options: dict[str, Any]) -> Tensor:
    """What each query's largest similarity may be off by, (…, Q)."""
    magnitudes, _ = exact_similarities(
        Features(batch.regions.abs(), batch.words.abs(), *batch.lengths, batch.pairs), options
    )
    of_queries = magnitudes.amax(-1)
    return (HALVES + 16 * EPS) * of_queries.where(of_queries > -torch.inf, 0)


@isas
@examples(25)
@given(
    batch=features(("none", "all negative", "small", "large", "correlated", "opposites")), options=maxsim_options(True)
)
def test_split_similarities_are_within_their_bound(isa: str, batch: Features, options: dict[str, Any]) -> None:
    plain = options["pooling"] if options["pooling"] in ("avg", "max") else "sum"
    options |= {"pooling": plain, "clip_slope": 1.0, "top": 0}
    batch = batch.to(torch.float32).to(torch.float64)
    own = batch.to(torch.float32)
    with cpu_isa(isa), precision("high"):
        scores, argmax = maxsim_argmax(*own.arguments(), pairs=batch.pairs, backend="cpu", **options)
    similarities, queries = exact_similarities(batch, options)
    bounds = similarity_bounds(batch, options) * queries
    best = similarities.amax(-1).where(queries, 0)
    # Even the context that rounding exchanges for the best one is nearly as good.
    taken = similarities.gather(-1, argmax.clamp(min=0)[..., None])[..., 0].where(queries, 0)
    assert bool((argmax[queries] >= 0).all())
    assert bool((argmax[~queries] == -1).all())
    assert bool((best - taken <= 2 * bounds).all())
    if options["pooling"] == "max":
        expected, bound = similarities.amax(-1).masked_fill(~queries, -torch.inf).amax(-1), bounds.amax(-1)
    else:
        counts = queries.sum(-1) if options["pooling"] == "avg" else 1
        expected, bound = best.sum(-1) / counts, bounds.sum(-1) / counts
    assert bool(((scores.double() - expected).abs() <= bound).all())


@isas
@examples(8)
@given(
    batch=features(("none", "correlated", "small", "all negative")),
    options=scan_options("cuda"),  # without focal attention and "minmax": weights would move across their mean
    relevance=st.sampled_from(RELEVANCES),
)
def test_split_attention(isa: str, batch: Features, options: dict[str, Any], relevance: str) -> None:
    """Where float32 loses an EPS of what it sums up, halves lose 2⁻¹⁵, and λ carries that into the weights."""
    options |= {
        "relevance": relevance,
        "pooling": "avg" if options["pooling"] == "max" else options["pooling"],
        "normalize": options["normalize"] or "norm" not in options["raw_feature_norm"],
        "lambda_softmax": min(options["lambda_softmax"], 20.0),
        "lambda_lse": min(options["lambda_lse"], 20.0),
    }
    assume(well_posed(batch, options))
    expected = Expectation.of(scan_scores, batch, torch.float32, unit=unit_of(torch.float32, options), **options)
    with precision("high"):
        expected.check("cpu", isa)


@isas
@directions
def test_gradients_of_split_sum_max(direction: str, isa: str) -> None:
    """No products are made of it but the similarities: with clear maxima it is that of float32."""
    batch = random_batch([17, 33, 16], [15, 20], 50)
    grads = []
    for name in ("high", "highest"):
        with cpu_isa(isa), precision(name):
            grads.append(evaluate(maxsim_scores, batch, torch.float32, backend="cpu", direction=direction)[1:])
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@isas
@functions
def test_the_precision_of_a_torch_backend(function: Callable[..., Tensor], isa: str) -> None:
    """It allows the same, and torch no longer tells what the older call had set."""
    batch = random_batch([17, 33, 16], [15, 20, 1], 50).to(torch.float32)
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    with cpu_isa(isa):
        with precision("high"):
            split = function(*batch.arguments(), backend="cpu")
        try:
            matmul.fp32_precision = "bf16"
            assert torch.equal(function(*batch.arguments(), backend="cpu"), split)
            matmul.fp32_precision = "ieee"
            assert not torch.equal(function(*batch.arguments(), backend="cpu"), split)
        finally:
            matmul.fp32_precision = before


@isas
@functions
@directions
def test_what_the_precision_allows(function: Callable[..., Tensor], direction: str, isa: str) -> None:
    """ "highest" is float32, to the bits that vectors give; less than that is split, in compiled calls too."""
    batch = random_batch([17, 33, 16], [15, 20, 1], 50).to(torch.float32)
    options: dict[str, Any] = {"direction": direction, "backend": "cpu"}
    # Vectors of other widths sum queries up in other orders, but do not change a similarity.
    pooling = "max" if function is maxsim_scores and isa == "amx_emulated" else "sum"
    with cpu_isa(OF_VECTORS[isa]):
        plain = function(*batch.arguments(), pooling=pooling, **options)
        with precision("high"):
            assert torch.equal(function(*batch.arguments(), pooling=pooling, **options), plain)

    def scored(*arguments: Tensor) -> Tensor:
        return function(*arguments, pooling=pooling, **options)

    torch.compiler.reset()
    compiled = torch.compile(scored, fullgraph=True, backend="aot_eager")
    with cpu_isa(isa):
        results = {}
        for name in ("highest", "high", "medium", "highest"):
            with precision(name):
                results[name] = scored(*batch.arguments())
                assert torch.equal(compiled(*batch.arguments()), results[name])
    assert torch.equal(results["high"], results["medium"])
    assert not torch.equal(results["high"], results["highest"])
    if isa == "amx" or function is maxsim_scores:
        assert torch.equal(results["highest"], plain)
    else:
        torch.testing.assert_close(results["highest"], plain, rtol=0, atol=1e-5)


@isas
@directions
def test_the_backward_pass_has_the_precision_of_the_forward_pass(direction: str, isa: str) -> None:
    batch = random_batch([17, 33, 16], [15, 20, 1], 50).to(torch.float32)
    grads = []
    for names in (("high", "high"), ("high", "highest"), ("highest", "highest")):
        regions, words = batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()
        with cpu_isa(isa):
            with precision(names[0]):
                scores = scan_scores(regions, words, *batch.lengths, direction=direction, backend="cpu")
            with precision(names[1]):
                grads.append(torch.autograd.grad(scores.sum(), (regions, words)))
    for first, second, third in zip(*grads, strict=True):
        assert torch.equal(first, second)
        assert not torch.equal(first, third)
