"""`maxsim_scores` by backend "triton" against the float64 oracle: forward, argmax and backward, in any tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import kept_plans, maxsim_scores
from crossret_kernels.maxsim.triton import backward, call, forward, tables
from tests.kernels.strategies import FEW_ITEMS, Features, examples, features, maxsim_options
from tests.kernels.test_maxsim_scores import UNTIED, check_argmax, exact_similarities
from tests.kernels.tolerance import Expectation, evaluate

directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])


@pytest.fixture(params=["usual tiles", "small tiles"], autouse=True, scope="module")
def tiles(request: pytest.FixtureRequest) -> Iterator[str]:
    """Small ones, so that a few items take several of everything, and longer ones pass in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small tiles":
            for module, name, value in (
                (kept_plans, "_kept", kept_plans._Kept()),  # none of other tiles
                (call, "LARGEST_TILE", 16),
                (call, "LARGER_TILE", 32),
                (call, "CELLS", 16 * 32),
                (call, "COLUMNS", 16),
                (call, "LARGEST_RESIDENT", 16),
                (forward, "PROGRAMS", 3),
                (tables, "BLOCK_ROWS", (16,)),
                (call, "WORKSPACE_BYTES", 700),
                (call, "PAIRS_AT_ONCE", 3),
                (backward, "LEAST_STEPS", 1),
                (backward, "RUNS_BYTES", 6000),
                (backward, "QUERIES", 16),
                (backward, "ITEMS", 2),
                (backward, "WIDTH", 32),
            ):
                patch.setattr(module, name, value)
        yield request.param


@pytest.fixture(params=[False, True], ids=["ieee", "tf32"])
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """The interpreter multiplies float32 as it is, but tiles are not the same."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("precision")
@examples(10)  # twice, and as often again in the other tiles
@given(batch=features(UNTIED, FEW_ITEMS), options=maxsim_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    Expectation.of(maxsim_scores, batch, torch.float32, **options).check("triton")


@examples(12)
@given(batch=features(("none", "small"), FEW_ITEMS), options=maxsim_options())
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    Expectation.of(maxsim_scores, batch, torch.float16, **options).check("triton")


@pytest.mark.parametrize(("direction", "dtype"), [("t2i", torch.float32), ("i2t", torch.float16)], ids=str)
def test_items_longer_than_a_tile(direction: str, dtype: torch.dtype) -> None:
    longest = call.LARGEST_TILE + 9
    regions, words = randn(2, longest, 20, seed=1).double(), randn(3, longest + 3, 20, seed=2).double()
    batch = Features(regions, words, torch.tensor([longest, 11]), torch.tensor([1, longest + 3, longest]), None)
    Expectation.of(maxsim_scores, batch, dtype, direction=direction, normalize=False).check("triton")


@pytest.mark.parametrize("listed", [False, True], ids=["all", "pairs"])
def test_gradients_of_cosines(listed: bool) -> None:
    pairs = torch.tensor([[0, 1], [2, 0], [0, 1], [1, 1]]) if listed else None
    lengths = torch.tensor([5, 1, 3]), torch.tensor([2, 4])
    batch = Features(randn(3, 5, 12, seed=1).double(), randn(2, 4, 12, seed=2).double(), *lengths, pairs)
    expected = Expectation.of(maxsim_scores, batch, torch.float32, normalize=True, pooling="avg")
    expected.check("triton")


@directions
@pytest.mark.usefixtures("precision")
def test_largest_tiles(direction: str) -> None:
    """Of the small ones such hold three items of ten queries, and the next smaller ones one."""
    batch = Features(randn(5, 10, 64, seed=1).double(), randn(7, 10, 64, seed=2).double(), None, None, None)
    Expectation.of(maxsim_scores, batch, torch.float32, direction=direction, normalize=False).check("triton")


@directions
def test_features_too_short_to_be_inverted_have_similarity_zero(direction: str) -> None:
    regions, words = (torch.full((2, 3, 4), value, requires_grad=True) for value in (1e-39, 1.0))
    scores = maxsim_scores(regions, words, direction=direction, normalize=True, backend="triton")
    assert torch.equal(scores, torch.zeros(2, 2))
    assert all(torch.equal(grad, torch.zeros(2, 3, 4)) for grad in torch.autograd.grad(scores.sum(), (regions, words)))


# --- argmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@examples(12)
@given(batch=features(("none", "none", "all negative", "large"), FEW_ITEMS), options=maxsim_options())
def test_argmax(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(dtype).to(torch.float64)
    given_batch = batch.to(dtype)
    scores, argmax = maxsim_scores(
        given_batch.regions, given_batch.words, *batch.lengths,
        pairs=batch.pairs, return_argmax=True, backend="triton", **options,
    )  # fmt: skip
    check_argmax(argmax, batch, options)
    if options["pooling"] == "sum":
        similarities, queries = exact_similarities(batch, options)
        taken = similarities.gather(-1, argmax.clamp(min=0)[..., None])[..., 0]
        pooled = taken.masked_fill(~queries, 0).sum(-1)
        longest = [float(side.norm(dim=-1).max()) for side in (batch.regions, batch.words)]
        scale = 1.0 if options["normalize"] else longest[0] * longest[1]
        torch.testing.assert_close(scores.double(), pooled, rtol=1e-4, atol=1e-4 * scale)


@directions
def test_of_equal_maxima_the_first_is_the_argmax(direction: str) -> None:
    generator = torch.Generator().manual_seed(1)
    regions = torch.randint(-1, 2, (5, 31, 4), generator=generator).float()
    words = torch.randint(-1, 2, (7, 40, 4), generator=generator).float()
    similarities = torch.einsum("ird,cwd->icrw", regions, words)
    expected = torch.from_numpy(similarities.numpy().argmax(-2 if direction == "t2i" else -1))
    _, argmax = maxsim_scores(regions, words, direction=direction, return_argmax=True, backend="triton")
    assert torch.equal(argmax, expected)


@examples(12)
@given(seed=st.integers(0, 2**32), options=maxsim_options(), listed=st.booleans())
def test_of_equal_maxima_the_first_gets_the_gradient(seed: int, options: dict[str, Any], listed: bool) -> None:
    """Small whole numbers: every similarity is exact, so ties are ties on every backend."""
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randint(-1, 2, (3, 19, 5), generator=generator).double()
    words = torch.randint(-1, 2, (4, 21, 5), generator=generator).double()
    lengths = [torch.randint(1, n + 1, (count,), generator=generator) for n, count in ((19, 3), (21, 4))]
    pairs = torch.tensor([[2, 1], [0, 0], [2, 3], [2, 1], [1, 1]]) if listed else None
    batch = Features(regions, words, *lengths, pairs)
    options |= {"normalize": False}
    expected = evaluate(maxsim_scores, batch, torch.float64, backend="reference", **options)
    actual = evaluate(maxsim_scores, batch, torch.float32, backend="triton", **options)
    for ours, true in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-6, atol=1e-5)


# --- what is not finite


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.parametrize(
    ("pooling", "normalize", "direction", "listed"),  # every two
    [
        (pooling, normalize, direction, i % 2 == j)
        for i, (pooling, normalize) in enumerate([("sum", False), ("avg", True), ("max", False), ("max", True)])
        for j, direction in enumerate(("t2i", "i2t"))
    ],
)
def test_what_is_not_finite_stays_in_its_item(direction: str, pooling: str, normalize: bool, listed: bool) -> None:
    contexts, queries = randn(4, 30, 19, seed=1), randn(5, 21, 19, seed=2)
    contexts[1, 17, 3] = contexts[1, 25, 0] = torch.nan
    contexts[2, 4, 7] = torch.inf
    queries[2, 5, 1] = torch.nan
    queries[3, 6, 1] = -torch.inf
    sides = (contexts, queries) if direction == "t2i" else (queries, contexts)
    options: dict[str, Any] = {"direction": direction, "pooling": pooling, "normalize": normalize}
    options["return_argmax"] = True
    if listed:
        options["pairs"] = torch.cartesian_prod(*(torch.arange(len(side)) for side in sides)).flip(0)
    scores, argmax = maxsim_scores(*sides, backend="triton", **options)
    expected, places = maxsim_scores(*sides, backend="reference", **options)
    torch.testing.assert_close(scores, expected, equal_nan=True)
    assert torch.equal(argmax, places)
    assert torch.isfinite(scores).any()


@directions
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_gradients_of_finite_items_stay_finite(direction: str) -> None:
    """Where no score of theirs meets what is not finite."""
    contexts, queries = randn(3, 20, 8, seed=3), randn(3, 18, 8, seed=4)
    contexts[1, 3, 3] = queries[2, 17, 1] = torch.nan
    sides = [side.requires_grad_() for side in ((contexts, queries) if direction == "t2i" else (queries, contexts))]
    pairs = torch.tensor([[0, 0], [1, 2], [0, 1], [2, 0]])
    pairs = pairs if direction == "t2i" else pairs.flip(1)
    scores = maxsim_scores(*sides, direction=direction, pairs=pairs, backend="triton")
    assert scores.isnan().tolist() == [False, True, False, False]
    scores.sum().backward()
    of_contexts, of_queries = (side.grad for side in (contexts, queries))
    assert of_contexts is not None
    assert of_queries is not None
    assert [bool(grad.isfinite().all()) for grad in of_contexts] == [True, False, True]
    assert [bool(grad.isfinite().all()) for grad in of_queries] == [True, True, False]


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of norms, of which those are never read either
@examples(6)
@given(batch=features(("none",), FEW_ITEMS), options=maxsim_options())
def test_padding_is_never_read(batch: Features, options: dict[str, Any]) -> None:
    options |= {"backend": "triton"}
    clean = evaluate(maxsim_scores, batch, torch.float32, **options)
    for side, lengths in zip((batch.regions, batch.words), batch.lengths, strict=True):
        side[torch.arange(side.size(1)) >= lengths[:, None]] = torch.nan
    for ours, theirs in zip(evaluate(maxsim_scores, batch, torch.float32, **options), clean, strict=True):
        assert torch.equal(ours, theirs)
