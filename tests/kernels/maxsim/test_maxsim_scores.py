"""`maxsim_scores` of every backend, instruction set and dtype against the float64 oracle, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores
from tests.kernels.maxsim.checks import UNTIED, Calls, Scores, check_argmax_of, check_that_company_keeps_bits
from tests.kernels.strategies import Features, examples, features, maxsim_options
from tests.kernels.threads import by_any_threads
from tests.kernels.tolerance import ISAS, Expectation, check_float64, cpu_isa


def check(batch: Features, dtype: torch.dtype, options: dict[str, Any]) -> None:
    # Soft maxima of small similarities are τ log n but for rounding, which then picks the greatest of them.
    small = batch.kind in ("small", "below the cosine's floor") and not options["normalize"]
    assume(not small or options["context_pooling"] == "max" or options["pooling"] not in ("max", "topk"))
    expected = Expectation.of(maxsim_scores, batch, dtype, **options)
    expected.check_faults()
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@examples(60)
@given(batch=features(UNTIED), options=maxsim_options(soft=True))
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    check(batch, torch.float32, options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@examples(20)
@given(batch=features(("none", "small")), options=maxsim_options(soft=True))
def test_half_precision_features(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    check(batch, dtype, options)


@examples(30)
@given(batch=features(UNTIED), options=maxsim_options(soft=True))
def test_torch_is_exact_in_float64(batch: Features, options: dict[str, Any]) -> None:
    check_float64(maxsim_scores, batch, options)


@pytest.fixture(params=[*ISAS, "torch"], scope="class")
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_isa(request.param if request.param in ISAS else None):
        yield "cpu" if request.param in ISAS else "torch"


class TestScores(Scores): ...


class TestCalls(Calls): ...


# --- a pair's score is its own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", ISAS)
@examples(20)
@given(batch=features(), options=maxsim_options(soft=True), data=st.data())
def test_neighbours_keep_the_bits(
    isa: str, dtype: torch.dtype, batch: Features, options: dict[str, Any], data: st.DataObject
) -> None:
    with cpu_isa(isa):
        check_that_company_keeps_bits(batch.to(dtype), options, data)


# What the kernel treats in its own way: rows that share cache sets, queries longer than a block, contexts longer than
# what the second cache holds.
SHAPES = {
    "rows a page apart": (3, 26, 5, 1024),
    "queries of several blocks": (4, 13, 300, 1030),
    "contexts of several cachefuls": (2, 700, 3, 257),
    "copied contexts that meet two blocks": (70, 60, 100, 16),
    "one context": (5, 1, 40, 96),
    "one query": (5, 40, 1, 96),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape: tuple[int, int, int, int], direction: str, dtype: torch.dtype) -> None:
    n, n_contexts, n_queries, dim = shape
    generator = torch.Generator().manual_seed(4)
    contexts = torch.randn(n, n_contexts, dim, generator=generator).to(dtype)
    queries = torch.randn(3, n_queries, dim, generator=generator).to(dtype)
    similarities = torch.einsum("ird,cwd->icrw", contexts.double(), queries.double())
    expected = similarities.amax(-2).sum(-1)
    sides = (contexts, queries) if direction == "t2i" else (queries, contexts)
    for isa in ISAS:
        with cpu_isa(isa):
            scores, argmax = maxsim_argmax(*sides, direction=direction, backend="cpu")
        if direction == "i2t":
            scores, argmax = scores.T, argmax.transpose(0, 1)
        torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-4 * dim**0.5)
        taken = similarities.gather(-2, argmax[:, :, None])[:, :, 0]
        torch.testing.assert_close(taken, similarities.amax(-2), rtol=0, atol=1e-4 * dim**0.5)


@pytest.mark.parametrize("pairs", [None, torch.tensor([[1, 0], [0, 0], [1, 1]])], ids=["all", "pairs"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [0.0, torch.nan], ids=["finite", "nan"])
def test_a_pair_cut_among_threads_keeps_its_bits(isa: str, pairs: Tensor | None, bad: float) -> None:
    generator = torch.Generator().manual_seed(5)
    regions, words = torch.randn(2, 2000, 64, generator=generator), torch.randn(2, 70, 64, generator=generator)
    regions[1, 1234, 5] = bad
    with cpu_isa(isa):
        (scores,) = by_any_threads(lambda: [maxsim_scores(regions, words, [1999, 1777], pairs=pairs, backend="cpu")])
    of_the_second = torch.tensor([[0, 0], [1, 1]] if pairs is None else pairs[:, 0].tolist()) == 1
    assert torch.equal(scores.isnan(), of_the_second & (bad != 0))


@pytest.mark.parametrize(
    ("images", "captions"),
    [((256, 1), (1, 300)), ((2, 2), (7, 5000))],
    ids=["contexts in several sections", "queries in several sections"],
)
@pytest.mark.parametrize("isa", ISAS)
def test_listed_pairs_of_more_partial_results_than_a_task_holds(
    isa: str, images: tuple[int, int], captions: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(6)
    sides = [torch.randn(*shape, 4, generator=generator) for shape in (images, captions)]
    pairs = torch.cartesian_prod(*(torch.arange(len(side)) for side in sides))
    weights = torch.randn(len(pairs), generator=generator)
    results = []
    for listed in (pairs, None):
        leaves = [side.clone().requires_grad_() for side in sides]
        with cpu_isa(isa):
            scores = maxsim_scores(*leaves, pairs=listed, backend="cpu").flatten()
            results.append((scores.detach(), *torch.autograd.grad(scores, leaves, weights)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("isa", ISAS)
def test_the_sign_of_a_zero_does_not_depend_on_the_contexts_order(isa: str) -> None:
    """Products that vanish are −0 or 0, and either may be the larger."""
    regions, words = torch.tensor([[[-1e-30], [1e-30]], [[1e-30], [-1e-30]]]), torch.full((1, 1, 1), 1e-30)
    with cpu_isa(isa):
        scores = maxsim_scores(regions, words, pooling="max", backend="cpu")
        alone = maxsim_scores(regions[:, :1], words, pooling="max", backend="cpu")
    assert not torch.cat([scores, alone]).signbit().any()


# --- argmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@examples(30)
@given(batch=features(("none", "none", "all negative", "large")), options=maxsim_options(one_way=True))
def test_argmax(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    check_argmax_of("torch", dtype, batch, options)
    if dtype == torch.float32:  # "reference" rounds similarities to the features' dtype
        check_argmax_of("reference", dtype, batch, options)
    for isa in ISAS:
        with cpu_isa(isa):
            check_argmax_of("cpu", dtype, batch, options)


@pytest.mark.parametrize("backend", [*ISAS, "torch", "reference"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize(("n_contexts", "dim"), [(30, 19), (300, 1000)], ids=["one part", "several parts"])
def test_argmax_of_nan_is_the_first_nan(backend: str, direction: str, n_contexts: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(2)
    contexts, queries = (torch.randn(n, rows, dim, generator=generator) for n, rows in ((3, n_contexts), (4, 21)))
    first = n_contexts // 2
    contexts[1, first, 3] = contexts[1, -3, 0] = torch.nan
    queries[2, 5, 1] = torch.nan
    sides = (contexts, queries) if direction == "t2i" else (queries, contexts)
    clean = torch.einsum("ird,cwd->icrw", torch.nan_to_num(contexts), torch.nan_to_num(queries)).argmax(-2)
    clean[1] = first
    clean[:, 2, 5] = 0
    with cpu_isa(backend if backend in ISAS else None):
        name = "cpu" if backend in ISAS else backend
        _, argmax = maxsim_argmax(*sides, direction=direction, backend=name)
    assert torch.equal(argmax, clean if direction == "t2i" else clean.transpose(0, 1))


@pytest.mark.parametrize("pooling", ["sum", "avg"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_gradients_are_those_of_contexts_that_are_searched_again(direction: str, pooling: str) -> None:
    """Kept from the forward pass, of any batch of all pairs; found again for pairs, which keep nothing."""
    generator = torch.Generator().manual_seed(3)
    regions, words = (torch.randn(n, rows, 12, generator=generator) for n, rows in ((5, 9), (7, 6)))
    regions[1, 2] = torch.nan
    words[3] = words[3, :1]  # equals, of which the first is the best
    lengths = [4, 9, 0, 1, 7], [6, 2, 5, 6, 0, 1, 3]
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(7))
    weights = torch.randn(5, 7, generator=generator)
    gradients = []
    for listed in (None, pairs):
        sides = [side.clone().requires_grad_() for side in (regions, words)]
        options = {"direction": direction, "pooling": pooling, "empty_score": 0.0, "backend": "cpu", "pairs": listed}
        scores = maxsim_scores(*sides, *lengths, **options)
        for _ in range(2):
            (scores.view(5, 7) * weights).sum().backward(retain_graph=True)
        gradients.append([side.grad for side in sides])
    torch.testing.assert_close(*gradients, equal_nan=True)


def test_a_large_batch_keeps_nothing() -> None:
    """Beyond 64 MiB."""
    of_few, of_many = (
        torch.ops.crossret.maxsim_scores(
            torch.ones(n, 1, 1), None, None, None, torch.ones(64, 256, 1), None, None, None,
            None, None, False, 0, False, 2, 1.0, 1.0, 0, 0, 1.0, True,
        )[1]
        for n in (1024, 1025)
    )  # fmt: skip
    assert of_few.shape == (1024, 64 * 256)
    assert of_few.dtype == torch.int32
    assert of_many.numel() == 0
