"""`heterogeneous_scores` against HAN's formulas and its float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels import (
    HeterogeneousLayer,
    heterogeneous_attention_weights,
    heterogeneous_scores,
    scan_scores,
)
from crossret_kernels.promises import GRADIENTS, RESULTS, unit_of
from tests.kernels import oracle
from tests.kernels.heterogeneous_attention.calls import (
    BACKENDS,
    DIMS,
    LENGTHS,
    PAIRS,
    Call,
    calls,
    make_sides,
    reordered,
)
from tests.kernels.strategies import DIRECTIONS, IN_HALF_RANGE, Features, examples
from tests.kernels.tolerance import EPS, ISAS, cpu_isa, gradient_bounds

directions = pytest.mark.parametrize("direction", DIRECTIONS)


def well_posed(call: Call) -> bool:
    """Whether rounding moves the result but little.

    No ties, no logits in the hundreds, no attended vector that vanishes.
    """
    wild = not call.options["normalize"] and call.batch.kind in ("large", "below the cosine's floor")
    return not wild and call.options["pooling"] != "max"


def check(call: Call, dtype: torch.dtype, backend: str = "torch") -> None:
    """Errors are at most twice what eager loses in float32, three times in gradients.

    What eager loses in bfloat16 where "cpu" multiplies in it.
    """
    kind = unit_of("heterogeneous_scores", backend, dtype)
    call = call.to(dtype, torch.float32).to(torch.float64)
    truth = call.evaluate("reference")
    dim, heads = call.batch.regions.size(-1), call.options["heads"]
    losses = [0.0] * len(truth)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        inside = torch.randperm(dim // heads, generator=generator)
        order = (torch.arange(heads)[:, None] * (dim // heads) + inside).flatten()
        scores, *gradients = call.reordered(order).to(kind).evaluate("reference")
        back = order.argsort()
        restored = [gradient[..., back] for gradient in gradients[:2]]
        restored += [reordered(gradient, back) for gradient in gradients[2:]]
        for place, (ours, true) in enumerate(zip((scores, *restored), truth, strict=True)):
            losses[place] = max(losses[place], float((ours - true).abs().max()))
    result = call.to(dtype, torch.float32).evaluate(backend)
    largest = max(1.0, *(float(gradient.abs().max()) for gradient in truth[3:]))
    for place, (ours, true) in enumerate(zip(result, truth, strict=True)):
        # A few units in the last place of what is summed up, which eager may avoid by luck.
        scale = max(float(true.abs().max()), largest if place > 2 else 1.0, 1 / call.options["lambda_lse"])
        lost = (GRADIENTS if place else RESULTS) * losses[place] + (
            32 * EPS if kind == torch.float32 else torch.finfo(kind).eps
        ) * scale
        bounds = gradient_bounds(true, lost, dtype if 0 < place < 3 else torch.float32)
        errors = (ours - true).abs()
        name = ("scores", "regions.grad", "words.grad", *HeterogeneousLayer._fields * len(call.layers))[place]
        assert bool((errors <= bounds).all()), f"{name} are off by {float(errors.max()):.3g}, more than {lost:.3g}"
        if (
            kind == torch.float32 and 0 < place < 3 and float(true.abs().max()) > 1e-3 * scale
        ):  # a halved, missing or negated one would be seen
            assert all(bool(((factor * true - true).abs() > bounds).any()) for factor in (0.5, 0.0, -1.0))


@examples(10)
@given(call=calls())
def test_float32(call: Call) -> None:
    assume(well_posed(call))
    check(call, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@examples(6)
@given(call=calls(degeneracies=IN_HALF_RANGE))
def test_half_precision_features(dtype: torch.dtype, call: Call) -> None:
    assume(well_posed(call))
    check(call, dtype)


@pytest.mark.parametrize("isa", ISAS)
@examples(20)
@given(call=calls(degeneracies=IN_HALF_RANGE), dtype=st.sampled_from((torch.float32, torch.float32, torch.float16)))
def test_kernels(isa: str, call: Call, dtype: torch.dtype) -> None:
    assume(well_posed(call))
    with cpu_isa(isa):
        check(call, dtype, "cpu")


@pytest.mark.parametrize("isa", torch.ops.crossret.cpu_isas().split())  # AMX emulated, too
@examples(12)
@given(call=calls(degeneracies=IN_HALF_RANGE))
def test_kernels_of_bfloat16(isa: str, call: Call) -> None:
    assume(well_posed(call))
    with cpu_isa(isa):
        check(replace(call, batch=replace(call.batch, pairs=None), layers=call.layers[:1]), torch.bfloat16, "cpu")


@examples(15)
@given(call=calls())
def test_torch_is_exact_in_float64(call: Call) -> None:
    assume(well_posed(call))
    for ours, true in zip(call.evaluate("torch"), call.evaluate("reference"), strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-6, atol=1e-8 * max(1.0, float(true.abs().max())))


# --- the paper, one pair and one row at a time


def attended_by_hand(
    regions: NDArray[np.float64], words: NDArray[np.float64], call: Call
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """HAN §3.2 in loops: the rows of one image and one caption after the layers."""
    h = [row for row in (*regions, *words)]
    if call.options["normalize"]:
        h = [row / np.linalg.norm(row) if np.linalg.norm(row) else row for row in h]
    for layer in call.layers:
        wq, bq, wk, bk, wv, bv, wo, bo, gain, shift = (parameter.double().numpy() for parameter in layer)
        q, k, v = ([w @ row + b for row in h] for w, b in ((wq, bq), (wk, bk), (wv, bv)))
        size = len(bq) // call.options["heads"]
        rows = []
        for query in q:
            heads = []
            for first in range(0, len(bq), size):
                part = slice(first, first + size)
                logits = np.array([call.options["lambda_attention"] * (query[part] @ key[part]) for key in k])
                weights = np.exp(logits - logits.max())
                heads.append(sum(w * value[part] for w, value in zip(weights / weights.sum(), v, strict=True)))
            row = wo @ np.concatenate(heads) + bo + query
            rows.append(gain * (row - row.mean()) / np.sqrt(row.var() + 1e-5) + shift)
        h = rows
    return np.array(h[: len(regions)]), np.array(h[len(regions) :])


@examples(20)
@given(call=calls(dims=DIMS[:-1]), layout=st.sampled_from(("padded", "packed", "list")))  # loops take their time
def test_it_follows_the_paper(call: Call, layout: str) -> None:
    assume(well_posed(call))
    batch, options = call.batch, call.options
    pairs = batch.pairs
    if pairs is None:
        pairs = torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).view(-1, 2)
    arguments, keywords = call.arguments(layout)
    scores = {backend: heterogeneous_scores(*arguments, backend=backend, **keywords).flatten() for backend in BACKENDS}
    keywords["pairs"] = pairs
    local = keywords.pop("matching") == "local"
    attention = {
        backend: heterogeneous_attention_weights(*arguments, backend=backend, **keywords)
        for backend in BACKENDS
        if local
    }
    for place, (image, caption) in enumerate(pairs.tolist()):
        v = batch.regions[image, : batch.region_lengths[image]].numpy()
        e = batch.words[caption, : batch.word_lengths[caption]].numpy()
        v, e = attended_by_hand(v, e, call)
        matching = {"raw_feature_norm": "no_norm", "clip_slope": 0.0, "normalize": True}
        matching |= {name: options[name] for name in ("direction", "lambda_softmax")}
        weights, relevances = oracle.scan_attention(v, e, **matching)
        cosine = float(v[0] @ e[0] / (np.linalg.norm(v[0]) * np.linalg.norm(e[0])))
        expected = oracle.pooled(relevances, options["pooling"], options["lambda_lse"]) if local else cosine
        for backend in BACKENDS:
            assert float(scores[backend][place]) == pytest.approx(expected, rel=1e-7, abs=1e-8)
            if local:
                own, ours, theirs = (output[place] for output in attention[backend])
                assert float(own) == pytest.approx(expected, rel=1e-7, abs=1e-8)
                for padded, true in ((ours, weights), (theirs, relevances)):
                    full = np.zeros(padded.shape)
                    full[tuple(slice(n) for n in true.shape)] = true
                    np.testing.assert_allclose(padded.numpy(), full, rtol=1e-6, atol=1e-7)


# --- no layers


@directions
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_without_layers_it_is_scan(pairs: Tensor | None, backend: str | None, direction: str) -> None:
    regions, words = make_sides(7)  # which no number of heads needs to divide
    options = {"direction": direction, "lambda_softmax": 5.0, "pooling": "lse", "pairs": pairs, "backend": backend}
    ours = heterogeneous_scores(regions, words, *LENGTHS, layers=[], normalize=False, lambda_lse=3.0, **options)
    theirs = scan_scores(
        regions, words, *LENGTHS, raw_feature_norm="no_norm", normalize=True, lambda_lse=3.0, **options
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", ["padded", "packed", "list"])
@pytest.mark.parametrize("backend", [None, "torch", "reference"])
def test_without_layers_the_global_matching_is_a_cosine(backend: str | None, layout: str) -> None:
    regions, words = make_sides()
    batch = Features(regions, words, torch.tensor(LENGTHS[0]), torch.tensor(LENGTHS[1]), None)
    scores = heterogeneous_scores(*batch.arguments(layout), layers=[], matching="global", backend=backend)
    expected = torch.cosine_similarity(regions[:, None, 0], words[None, :, 0], dim=-1)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
