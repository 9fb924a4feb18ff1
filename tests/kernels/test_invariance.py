"""A pair's score is its own: neither threads, nor its neighbours in the batch, nor padding, nor strides show in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels.strategies import Features, examples, features, scan_options
from tests.kernels.tolerance import cpu_isa, evaluate

ISAS = torch.ops.crossret.cpu_isas().split()


@pytest.fixture
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _batch(seed: int = 0, n_images: int = 23, n_captions: int = 31) -> Features:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(n_images, 36, 100, generator=generator, dtype=torch.float64)
    words = torch.randn(n_captions, 20, 100, generator=generator, dtype=torch.float64)
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
@examples(40)
@given(batch=features(), options=scan_options(), data=st.data())
def test_shards_and_permutations_keep_the_bits(
    isa: str, batch: Features, options: dict[str, Any], data: st.DataObject
) -> None:
    batch = batch.to(torch.float32)
    images = torch.tensor(data.draw(st.permutations(range(len(batch.regions)))))
    captions = torch.tensor(data.draw(st.permutations(range(len(batch.words)))))
    images, captions = images[: data.draw(st.integers(1, len(images)))], captions[: data.draw(st.integers(1, 4))]
    with cpu_isa(isa):
        whole = scan_scores(*batch.arguments(), backend="cpu", **options)
        part = scan_scores(
            batch.regions[images], batch.words[captions], batch.region_lengths[images], batch.word_lengths[captions],
            backend="cpu", **options,
        )  # fmt: skip
    assert torch.equal(part, whole[images][:, captions])


@pytest.mark.parametrize("isa", ISAS)
@examples(25)
@given(batch=features(), options=scan_options())
def test_pairs_have_the_bits_of_the_full_matrix(isa: str, batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.float32)
    pairs = torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).flip(0)
    with cpu_isa(isa):
        whole = scan_scores(*batch.arguments(), backend="cpu", **options)
        listed = scan_scores(*batch.arguments(), pairs=pairs, backend="cpu", **options)
    assert torch.equal(listed, whole[pairs[:, 0], pairs[:, 1]])


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_padding_is_never_read(function: Callable[..., Tensor], backend: str, garbage: float) -> None:
    clean = _batch(1)
    dirty = _batch(1)
    for side, lengths in ((dirty.regions, dirty.region_lengths), (dirty.words, dirty.word_lengths)):
        for item, length in zip(side, lengths.tolist(), strict=True):
            item[length:] = garbage
    expected = evaluate(function, clean, torch.float32, backend=backend)
    actual = evaluate(function, dirty, torch.float32, backend=backend)
    for ours, true in zip(actual, expected, strict=True):
        assert torch.equal(ours, true)


@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_strides_do_not_matter(function: Callable[..., Tensor]) -> None:
    batch = _batch(2).to(torch.float32)
    expected = function(*batch.arguments(), backend="cpu")
    regions = torch.stack([batch.regions, torch.full_like(batch.regions, torch.nan)], -1)[..., 0]
    words = batch.words.transpose(0, 1).contiguous().transpose(0, 1)
    assert not regions.is_contiguous()
    assert not words.is_contiguous()
    assert torch.equal(function(regions, words, *batch.lengths, backend="cpu"), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("pooling", ["lse", "avg", "sum", "max"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("isa", ISAS)
@examples(6)
@given(options=scan_options())
def test_nan_reaches_its_own_items_scores_only(
    isa: str, direction: str, pooling: str, bad: float, options: dict[str, Any]
) -> None:
    batch = _batch(3, 5, 7).to(torch.float32)
    clean_regions, clean_words = batch.regions.clone(), batch.words.clone()
    options = {**options, "direction": direction, "pooling": pooling}
    batch.regions[1, 0, 3] = bad
    batch.words[4, 0, 2] = bad
    with cpu_isa(isa):
        expected = scan_scores(clean_regions, clean_words, *batch.lengths, backend="cpu", **options)
        scores = scan_scores(*batch.arguments(), backend="cpu", **options)
    hit = torch.zeros(5, 7, dtype=torch.bool)
    hit[1, :] = True
    hit[:, 4] = True
    assert torch.equal(scores[~hit], expected[~hit])
    assert torch.isnan(scores[hit]).all()


@pytest.mark.parametrize("pooling", ["avg", "sum", "max"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("isa", ISAS)
def test_nan_reaches_its_own_items_sum_max_only(isa: str, direction: str, pooling: str) -> None:
    batch = _batch(4, 5, 7).to(torch.float32)
    clean_regions, clean_words = batch.regions.clone(), batch.words.clone()
    batch.regions[1, 0, 3] = torch.nan
    batch.words[4, batch.word_lengths[4] - 1, 2] = torch.nan
    options = {"direction": direction, "pooling": pooling, "backend": "cpu"}
    with cpu_isa(isa):
        expected = maxsim_scores(clean_regions, clean_words, *batch.lengths, **options)
        scores = maxsim_scores(*batch.arguments(), **options)
    hit = torch.zeros(5, 7, dtype=torch.bool)
    hit[1, :] = True
    hit[:, 4] = True
    assert torch.equal(scores[~hit], expected[~hit])
    assert torch.isnan(scores[hit]).all()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda x: x[:, :7], id="some rows of each item"),
        pytest.param(lambda x: x[:, 3:4], id="one row of each item"),
        pytest.param(lambda x: x[::2], id="every other item"),
        pytest.param(lambda x: x[:, ::3], id="every third row"),
        pytest.param(lambda x: x[:1].expand(5, -1, -1), id="one item again and again"),
        pytest.param(lambda x: x.flip(1).transpose(0, 1), id="items and rows swapped"),
    ],
)
def test_a_slice_scores_as_its_copy_does(
    function: Callable[..., Tensor], cut: Callable[[Tensor], Tensor], dtype: torch.dtype, normalize: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(6, 10, 33, generator=generator).to(dtype)
    words = torch.randn(4, 9, 33, generator=generator).to(dtype)
    whole, copied = batch.clone().requires_grad_(), cut(batch).contiguous().requires_grad_()
    scores = function(cut(whole), words, normalize=normalize, backend="cpu")
    expected = function(copied, words, normalize=normalize, backend="cpu")
    assert torch.equal(scores, expected)
    weights = torch.randn(scores.shape, generator=generator)
    (gradient,) = torch.autograd.grad(scores, whole, weights)
    (own,) = torch.autograd.grad(expected, copied, weights)
    placed = torch.autograd.grad(cut(whole), whole, own)[0]
    torch.testing.assert_close(gradient, placed, rtol=0, atol=0)
