"""Float32 as AMX's tiles multiply it where torch allows: as three products of halves, within their bound.

x = h + l + e of bfloat16 h and l, |l| ≤ 2⁻⁸ |x| and |e| ≤ 2⁻¹⁷ |x|, so that of each a · b the products h·h + h·l + l·h
lack no more than (2⁻¹⁶ + 2 · 2⁻¹⁷) |a| |b| = 2⁻¹⁵ |a| |b|.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores, scan_scores
from tests.kernels.cpu.test_amx import HALVES, directions, functions, isas, precision, random_batch, unit_of
from tests.kernels.maxsim.checks import exact_similarities
from tests.kernels.strategies import RELEVANCES, Features, examples, features, maxsim_options, scan_options
from tests.kernels.tolerance import EPS, Expectation, cpu_isa, evaluate, well_posed


def similarity_bounds(batch: Features, options: dict[str, Any]) -> Tensor:
    """Bounds of the error of each query's largest similarity, (…, Q)."""
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
    with cpu_isa({"amx": "avx512", "amx_emulated": "base"}[isa]):
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
