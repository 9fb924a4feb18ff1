"""Neither threads, nor padding, nor strides show in a pair's score, nor do its neighbours but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels.strategies import Features, examples, features, maxsim_options, scan_options
from tests.kernels.tolerance import EPS, ISAS, cpu_isa, evaluate, least_attended, well_posed


@pytest.fixture
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _batch(seed: int = 0, n_images: int = 23, n_captions: int = 31, dim: int = 100) -> Features:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(n_images, 36, dim, generator=generator, dtype=torch.float64)
    words = torch.randn(n_captions, 20, dim, generator=generator, dtype=torch.float64)
    lengths = [torch.randint(1, n + 1, (c,), generator=generator) for n, c in ((36, n_images), (20, n_captions))]
    return Features(regions, words, lengths[0], lengths[1], None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
@pytest.mark.usefixtures("restored_threads")
def test_any_number_of_threads_gives_the_same_bits(function: Callable[..., Tensor], direction: str, isa: str) -> None:
    results = []
    with cpu_isa(isa):
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(evaluate(function, _batch(), torch.float32, backend="cpu", direction=direction))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize("isa", ISAS)
@examples(30)
@given(batch=features(), options=scan_options(), data=st.data())
def test_permutations_keep_the_bits(isa: str, batch: Features, options: dict[str, Any], data: st.DataObject) -> None:
    batch = batch.to(torch.float32)
    images = torch.tensor(data.draw(st.permutations(range(len(batch.regions)))))
    captions = torch.tensor(data.draw(st.permutations(range(len(batch.words)))))
    with cpu_isa(isa):
        whole = scan_scores(*batch.arguments(), backend="cpu", **options)
        other = scan_scores(
            batch.regions[images], batch.words[captions], batch.region_lengths[images], batch.word_lengths[captions],
            backend="cpu", **options,
        )  # fmt: skip
    assert torch.equal(other, whole[images][:, captions])


def rounding(batch: Features, options: dict[str, Any], whole: Tensor) -> float:
    """How far apart scores of two forms of ‖attended‖ may be; where contexts cancel either loses digits."""
    queries = batch.words if options["direction"] == "t2i" else batch.regions
    terms = queries.size(1) if options["pooling"] == "sum" else max(1.0, 1 / options["lambda_lse"])
    return 32 * EPS * max(terms, float(whole.abs().max())) / least_attended(batch.to(torch.float64), options)


@pytest.mark.parametrize("isa", ISAS)
@examples(40)
@given(batch=features(), options=scan_options(), data=st.data())
def test_shards_and_pairs_score_as_the_whole_batch_does(
    isa: str, batch: Features, options: dict[str, Any], data: st.DataObject
) -> None:
    """Which form ‖attended‖ is made in follows the number of queries that a context item meets."""
    assume(well_posed(batch, options))
    batch = batch.to(torch.float32)
    images = torch.tensor(data.draw(st.permutations(range(len(batch.regions)))))
    captions = torch.tensor(data.draw(st.permutations(range(len(batch.words)))))
    images, captions = images[: data.draw(st.integers(1, len(images)))], captions[: data.draw(st.integers(1, 4))]
    pairs = torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).flip(0)
    with cpu_isa(isa):
        whole = scan_scores(*batch.arguments(), backend="cpu", **options)
        part = scan_scores(
            batch.regions[images], batch.words[captions], batch.region_lengths[images], batch.word_lengths[captions],
            backend="cpu", **options,
        )  # fmt: skip
        listed = scan_scores(*batch.arguments(), pairs=pairs, backend="cpu", **options)
    bound = rounding(batch, options, whole)
    torch.testing.assert_close(part, whole[images][:, captions], rtol=0, atol=bound)
    torch.testing.assert_close(listed, whole[pairs[:, 0], pairs[:, 1]], rtol=0, atol=bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [8, 512])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_either_form_of_the_attended_norm(direction: str, dim: int, isa: str) -> None:
    """By the contexts themselves for the few queries of one item, by the factor of their Gram matrix for many; for more
    contexts than twice their dimensions never by the factor.
    """
    batch = _batch(5, 9, 60, dim)
    expected = scan_scores(*batch.arguments(), direction=direction, backend="reference")
    batch = batch.to(torch.float32)
    with cpu_isa(isa):
        scores = scan_scores(*batch.arguments(), direction=direction, backend="cpu")
        for image, caption in ((0, 0), (4, 20), (8, 40)):
            own = slice(image, image + 1), slice(caption, caption + 1)
            v, e = own
            sides = (batch.regions[v], batch.words[e], batch.region_lengths[v], batch.word_lengths[e])
            alone = scan_scores(*sides, direction=direction, backend="cpu")
            torch.testing.assert_close(alone.double(), expected[own], rtol=0, atol=2e-6)
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=2e-6)


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
    assert (bad == torch.inf and function is maxsim_scores) or torch.isnan(scores[hit]).all()
