"""A pair's score does not depend on its neighbours but for rounding, whatever the batch's size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels.strategies import Features, examples, features, maxsim_options, scan_options
from tests.kernels.tolerance import EPS, ISAS, cpu_isa, least_attended, well_posed


def _batch(seed: int = 0, n_images: int = 23, n_captions: int = 31, dim: int = 100) -> Features:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(n_images, 36, dim, generator=generator, dtype=torch.float64)
    words = torch.randn(n_captions, 20, dim, generator=generator, dtype=torch.float64)
    lengths = [torch.randint(1, n + 1, (c,), generator=generator) for n, c in ((36, n_images), (20, n_captions))]
    return Features(regions, words, lengths[0], lengths[1], None)


def rounding(batch: Features, options: dict[str, Any], whole: Tensor) -> float:
    """How far apart scores of two forms of ‖attended‖ may be; where contexts cancel either loses digits."""
    queries = batch.words if options["direction"] == "t2i" else batch.regions
    terms = queries.size(1) if options["pooling"] == "sum" else max(1.0, 1 / options["lambda_lse"])
    return 32 * EPS * max(terms, float(whole.abs().max())) / least_attended(batch.to(torch.float64), options)


@pytest.mark.parametrize("isa", ISAS)
@examples(40)
@given(batch=features(), options=scan_options(), data=st.data())
def test_a_pair_scores_alike_in_any_company(
    isa: str, batch: Features, options: dict[str, Any], data: st.DataObject
) -> None:
    """A permuted batch has the same bits. Shards and listed pairs, whose contexts meet other numbers of queries, may
    take another form of ‖attended‖.
    """
    exact, batch = batch, batch.to(torch.float32)
    n_images, n_captions = len(batch.regions), len(batch.words)
    images, captions = (torch.tensor(data.draw(st.permutations(range(n)))) for n in (n_images, n_captions))
    some = images[: data.draw(st.integers(1, n_images))], captions[: data.draw(st.integers(1, 4))]
    pairs = torch.cartesian_prod(torch.arange(n_images), torch.arange(n_captions)).flip(0)

    def score(v: Tensor, e: Tensor) -> Tensor:
        sides = batch.regions[v], batch.words[e], batch.region_lengths[v], batch.word_lengths[e]
        return scan_scores(*sides, backend="cpu", **options)

    with cpu_isa(isa):
        whole = scan_scores(*batch.arguments(), backend="cpu", **options)
        assert torch.equal(score(images, captions), whole[images][:, captions])
        part, listed = score(*some), scan_scores(*batch.arguments(), pairs=pairs, backend="cpu", **options)
    if well_posed(exact, options):
        bound = rounding(batch, options, whole)
        torch.testing.assert_close(part, whole[some[0]][:, some[1]], rtol=0, atol=bound)
        torch.testing.assert_close(listed, whole[pairs[:, 0], pairs[:, 1]], rtol=0, atol=bound)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_more_of_both_sides_than_is_held_at_a_time(function: Callable[..., Tensor], direction: str) -> None:
    """8 MiB of either side, packed: each of these is taken in several parts."""
    generator = torch.Generator().manual_seed(6)
    sides = [torch.randn(16, 21, 8192, generator=generator) for _ in range(2)]
    lengths = [torch.randint(18, 22, (16,), generator=generator) for _ in range(2)]
    weights = torch.randn(16, 16, generator=generator)
    results = []
    for backend in ("cpu", "torch"):
        leaves = [side.clone().requires_grad_() for side in sides]
        scores = function(*leaves, *lengths, direction=direction, normalize=True, backend=backend, pooling="avg")
        results.append((scores.detach(), *torch.autograd.grad(scores, leaves, weights)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_of_many_queries_meets_the_contexts_of_all(dtype: torch.dtype) -> None:
    """Fewer columns than before leave room for all contexts at once: those that are held are others by then."""
    generator = torch.Generator().manual_seed(9)
    regions = torch.randn(100, 30, 128, generator=generator).to(dtype)
    words = torch.randn(600, 32, 128, generator=generator).to(dtype)
    scores = maxsim_scores(regions, words, normalize=True, backend="cpu")
    assert torch.equal(scores[:, -96:], maxsim_scores(regions, words[-96:], normalize=True, backend="cpu"))


@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_more_pairs_than_are_planned_at_once(function: Callable[..., Tensor]) -> None:
    """2¹⁷, of more items than are sorted in one pass."""
    generator = torch.Generator().manual_seed(10)
    regions, words = (torch.randn(n, 1, 4, generator=generator) for n in (70_000, 5))
    pairs = torch.stack([torch.randint(n, (2**17 + 300,), generator=generator) for n in (70_000, 5)], 1)
    scores = function(regions, words, pairs=pairs, backend="cpu")
    for some in (slice(0, 300), slice(2**17 - 150, 2**17 + 150), slice(2**17, None)):
        assert torch.equal(scores[some], function(regions, words, pairs=pairs[some], backend="cpu"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(("function", "drawn"), [(scan_scores, scan_options()), (maxsim_scores, maxsim_options())])
@pytest.mark.parametrize("isa", ISAS)
@examples(30)
@given(data=st.data())
def test_nan_reaches_its_own_items_scores_only(
    isa: str, function: Callable[..., Tensor], drawn: Any, bad: float, data: st.DataObject
) -> None:
    batch = _batch(3, 5, 7).to(torch.float32)
    clean, options = [batch.regions.clone(), batch.words.clone()], data.draw(drawn)
    batch.regions[1, 0, 3] = bad
    batch.words[4, batch.word_lengths[4] - 1, 2] = bad
    with cpu_isa(isa):
        expected = function(*clean, *batch.lengths, backend="cpu", **options)
        scores = function(*batch.arguments(), backend="cpu", **options)
    hit = torch.zeros(5, 7, dtype=torch.bool)
    hit[1], hit[:, 4] = True, True
    assert torch.equal(scores[~hit], expected[~hit])
    # Sum-Max of an infinite feature is infinite, and so is its projection.
    of_products = function is maxsim_scores or options["relevance"] == "projection"
    assert (bad == torch.inf and of_products) or torch.isnan(scores[hit]).all()
