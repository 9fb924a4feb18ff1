"""Checks of `maxsim_scores` by any backend, against the oracle and by hand, which tests inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores, maxsim_topk
from tests.every_two import every_two
from tests.kernels.holes import Holes
from tests.kernels.strategies import DEGENERACIES, FEW_ITEMS, Features, examples, features, listed_pairs, maxsim_options
from tests.kernels.tolerance import Expectation, evaluate

directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])
listed_or_all = pytest.mark.parametrize("listed", [False, True], ids=["all", "pairs"])
# Every two of these.
poolings_and_norms = pytest.mark.parametrize(
    ("pooling", "normalize", "direction", "listed"),
    [
        (pooling, normalize, direction, i % 2 == j)
        for i, (pooling, normalize) in enumerate([("sum", False), ("avg", True), ("max", False), ("max", True)])
        for j, direction in enumerate(("t2i", "i2t"))
    ],
)
ignore_no_numbers = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning", "ignore:All-NaN slice:RuntimeWarning"
)

# Of equal similarities rounding picks the maximum, and gradients go there: ties have their own test.
UNTIED = tuple(kind for kind in DEGENERACIES if kind not in ("duplicates", "zero region", "zero word"))
STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "sliced": lambda side: torch.cat([side, side], 1)[:, : side.size(1)],
    "transposed": lambda side: side.mT.contiguous().mT,
    "shifted": lambda side: torch.cat([side[..., :1], side, side[..., :2]], 2)[..., 1:-2],
    "one row": lambda side: side[:1, :1].expand_as(side),
}
layouts = pytest.mark.parametrize("layout", ["packed", "list", *STRIDES])


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_long_items(
    backend: str, longest: int, direction: str, dtype: torch.dtype, listed: bool = False, **options: Any
) -> None:
    regions, words = randn(2, longest, 20, seed=1).double(), randn(3, longest + 3, 20, seed=2).double()
    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [1, 1]]) if listed else None
    batch = Features(regions, words, torch.tensor([longest, 11]), torch.tensor([1, longest + 3, longest]), pairs)
    options = {"direction": direction, "normalize": False} | options
    Expectation.of(maxsim_scores, batch, dtype, **options).check(backend)


def exact_similarities(batch: Features, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Similarities (…, Q, C) in float64, minus infinity where there is no such context, and which queries are."""
    regions, words = (
        torch.nan_to_num(side / side.norm(dim=-1, keepdim=True)) if options["normalize"] else side
        for side in (batch.regions, batch.words)
    )
    masks = [
        torch.arange(side.size(1)) < lengths[:, None]
        for side, lengths in zip((regions, words), batch.lengths, strict=True)
    ]
    images, captions = torch.meshgrid(torch.arange(len(regions)), torch.arange(len(words)), indexing="ij")
    if batch.pairs is not None:
        images, captions = batch.pairs.T
    similarities = regions[images] @ words[captions].mT
    region_mask, word_mask = masks[0][images], masks[1][captions]
    if options["direction"] == "t2i":
        similarities, region_mask, word_mask = similarities.mT, word_mask, region_mask
    return similarities.masked_fill(~word_mask[..., None, :], -torch.inf), region_mask


def check_argmax(argmax: Tensor, batch: Features, options: dict[str, Any]) -> None:
    """Each query's context has its largest similarity, but for what rounding may exchange; −1 where none is."""
    similarities, queries = exact_similarities(batch, options)
    scale = 1.0 if options["normalize"] else float(batch.regions.norm(dim=-1).max() * batch.words.norm(dim=-1).max())
    assert argmax.dtype == torch.int64
    assert argmax.shape == queries.shape
    assert (argmax[~queries] == -1).all()
    assert (argmax[queries] >= 0).all()
    taken = similarities.gather(-1, argmax.clamp(min=0)[..., None])[..., 0]
    assert (similarities.amax(-1) - taken)[queries].max() <= 1e-5 * scale


def check_argmax_of(backend: str, dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    """The argmax against exact similarities, its scores against `maxsim_scores`."""
    narrow = batch.to(dtype)
    options = {"pairs": batch.pairs, "backend": backend, **options}
    scores, argmax = maxsim_argmax(*narrow.arguments(), **options)
    check_argmax(argmax, narrow.to(torch.float64), options)
    plain = maxsim_scores(*narrow.arguments(), **options)
    if backend == "triton":  # whose kernels of scores alone have other tiles
        torch.testing.assert_close(scores, plain, rtol=1e-4, atol=1e-4 * max(1.0, float(plain.abs().max())))
    else:
        assert torch.equal(scores, plain)


def masked_sides() -> list[Holes]:
    """Items of which some have no rows, NaN where there are none."""
    lengths = [torch.tensor([4, 0, 19, 1, 7]), torch.tensor([0, 5, 2, 18])]
    return [Holes.of(randn(len(own), 19, 16, seed=7 + i), own, i) for i, own in enumerate(lengths)]


def check_that_company_keeps_bits(batch: Features, options: dict[str, Any], data: st.DataObject) -> None:
    """By backend "cpu": of some items, and of listed pairs."""
    images = torch.tensor(data.draw(st.permutations(range(len(batch.regions)))))[: data.draw(st.integers(1, 5))]
    captions = torch.tensor(data.draw(st.permutations(range(len(batch.words)))))[: data.draw(st.integers(1, 4))]
    pairs = listed_pairs(batch)
    whole = maxsim_scores(*batch.arguments(), backend="cpu", **options)
    part = maxsim_scores(
        batch.regions[images], batch.words[captions], batch.region_lengths[images], batch.word_lengths[captions],
        backend="cpu", **options,
    )  # fmt: skip
    listed = maxsim_scores(*batch.arguments(), pairs=pairs, backend="cpu", **options)
    assert torch.equal(part, whole[images][:, captions])
    assert torch.equal(listed, whole[pairs[:, 0], pairs[:, 1]])


class Scores:
    """Checks of scores, argmax and gradients by the fixture `backend`, of a class or a module."""

    @listed_or_all
    def test_gradients_of_cosines(self, backend: str, listed: bool) -> None:
        pairs = torch.tensor([[0, 1], [2, 0], [0, 1], [1, 1]]) if listed else None
        lengths = torch.tensor([5, 1, 3]), torch.tensor([2, 4])
        batch = Features(randn(3, 5, 12, seed=1).double(), randn(2, 4, 12, seed=2).double(), *lengths, pairs)
        Expectation.of(maxsim_scores, batch, torch.float32, normalize=True, pooling="avg").check(backend)

    @directions
    def test_features_too_short_to_be_inverted_have_similarity_zero(self, backend: str, direction: str) -> None:
        """By kernels their similarity is zero, whatever its sign; PyTorch operations divide by what float32 holds."""
        if backend == "torch":
            return
        regions, words = (torch.full((2, 3, 4), value) for value in (1e-39, 1.0))
        regions[:, 0] *= -1
        options: dict[str, Any] = {"direction": direction, "normalize": True, "backend": backend}
        scores, argmax = maxsim_argmax(regions.requires_grad_(), words.requires_grad_(), **options)
        assert torch.equal(scores, torch.zeros(2, 2))
        assert not argmax.any()
        assert all(
            torch.equal(grad, torch.zeros(2, 3, 4)) for grad in torch.autograd.grad(scores.sum(), (regions, words))
        )

    @directions
    def test_of_equal_maxima_the_first_is_the_argmax(self, backend: str, direction: str) -> None:
        generator = torch.Generator().manual_seed(1)
        regions = torch.randint(-1, 2, (5, 31, 4), generator=generator).float()
        words = torch.randint(-1, 2, (7, 40, 4), generator=generator).float()
        similarities = torch.einsum("ird,cwd->icrw", regions, words)
        expected = torch.from_numpy(similarities.numpy().argmax(-2 if direction == "t2i" else -1))
        _, argmax = maxsim_argmax(regions, words, direction=direction, backend=backend)
        assert torch.equal(argmax, expected)

    @examples(12)
    @given(seed=st.integers(0, 2**32), options=maxsim_options(), listed=st.booleans())
    def test_of_equal_maxima_the_first_gets_the_gradient(
        self, backend: str, seed: int, options: dict[str, Any], listed: bool
    ) -> None:
        """Small whole numbers: every similarity is exact, so ties are ties on every backend."""
        generator = torch.Generator().manual_seed(seed)
        regions = torch.randint(-1, 2, (3, 19, 5), generator=generator).double()
        words = torch.randint(-1, 2, (4, 21, 5), generator=generator).double()
        lengths = [torch.randint(1, n + 1, (count,), generator=generator) for n, count in ((19, 3), (21, 4))]
        pairs = torch.tensor([[2, 1], [0, 0], [2, 3], [2, 1], [1, 1]]) if listed else None
        batch = Features(regions, words, *lengths, pairs)
        options |= {"normalize": False}
        expected = evaluate(maxsim_scores, batch, torch.float64, backend="reference", **options)
        actual = evaluate(maxsim_scores, batch, torch.float32, backend=backend, **options)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-5)

    @ignore_no_numbers
    @poolings_and_norms
    def test_what_is_not_finite_stays_in_its_item(
        self, backend: str, direction: str, pooling: str, normalize: bool, listed: bool
    ) -> None:
        contexts, queries = randn(4, 30, 19, seed=1), randn(5, 21, 19, seed=2)
        contexts[1, 17, 3], contexts[1, 25, 0] = -torch.nan, torch.nan
        contexts[2, 4, 7] = torch.inf
        queries[2, 5, 1] = torch.nan
        queries[3, 6, 1] = -torch.inf
        sides = (contexts, queries) if direction == "t2i" else (queries, contexts)
        options: dict[str, Any] = {"direction": direction, "pooling": pooling, "normalize": normalize}
        if listed:
            options["pairs"] = torch.cartesian_prod(*(torch.arange(len(side)) for side in sides)).flip(0)
        scores, argmax = maxsim_argmax(*sides, backend=backend, **options)
        expected, places = maxsim_argmax(*sides, backend="reference", **options)
        torch.testing.assert_close(scores, expected, equal_nan=True)
        assert torch.equal(argmax, places)
        assert torch.isfinite(scores).any()

    @pytest.mark.parametrize("context_pooling", ["max", "lse"])
    @directions
    @ignore_no_numbers
    def test_gradients_of_finite_items_stay_finite(self, backend: str, direction: str, context_pooling: str) -> None:
        """Where no score of theirs meets what is not finite."""
        contexts, queries = randn(3, 20, 8, seed=3), randn(3, 18, 8, seed=4)
        contexts[1, 3, 3] = queries[2, 17, 1] = torch.nan
        sides = [side.requires_grad_() for side in ((contexts, queries) if direction == "t2i" else (queries, contexts))]
        pairs = torch.tensor([[0, 0], [1, 2], [0, 1], [2, 0]])
        pairs = pairs if direction == "t2i" else pairs.flip(1)
        options: dict[str, Any] = {"direction": direction, "context_pooling": context_pooling}
        scores = maxsim_scores(*sides, pairs=pairs, backend=backend, **options)
        assert scores.isnan().tolist() == [False, True, False, False]
        scores.sum().backward()
        of_contexts, of_queries = (side.grad for side in (contexts, queries))
        assert [bool(grad.isfinite().all()) for grad in of_contexts] == [True, False, True]
        assert [bool(grad.isfinite().all()) for grad in of_queries] == [True, True, False]

    @ignore_no_numbers
    @examples(8)
    @given(batch=features(("none",), FEW_ITEMS), options=maxsim_options(soft=True))
    def test_padding_is_never_read(self, backend: str, batch: Features, options: dict[str, Any]) -> None:
        options |= {"backend": backend}
        clean = evaluate(maxsim_scores, batch, torch.float32, **options)
        for side, lengths in zip((batch.regions, batch.words), batch.lengths, strict=True):
            side[torch.arange(side.size(1)) >= lengths[:, None]] = torch.nan
        torch.testing.assert_close(evaluate(maxsim_scores, batch, torch.float32, **options), clean, rtol=0, atol=0)


class Calls:
    """Checks of layouts, candidates, masks, items without rows and searches by the fixture `backend`."""

    @directions
    @layouts
    def test_layouts(self, backend: str, direction: str, layout: str) -> None:
        change = STRIDES.get(layout, Tensor.clone)
        lengths = torch.tensor([2, 25, 1, 5]), torch.tensor([18, 1, 3])
        batch = Features(change(randn(4, 25, 16, seed=7)), change(randn(3, 18, 16, seed=8)), *lengths, None)
        arguments = batch.arguments("padded" if layout in STRIDES else layout)
        scores, argmax = maxsim_argmax(*arguments, direction=direction, backend=backend)
        expected, places = maxsim_argmax(*batch.arguments(), direction=direction, backend="reference")
        torch.testing.assert_close(scores, expected)
        if layout == "one row":  # all contexts are the same: which is best is a matter of rounding
            assert torch.equal(argmax < 0, places < 0)
        else:
            assert torch.equal(argmax, places)

    @directions
    def test_candidates(self, backend: str, direction: str) -> None:
        regions, words = randn(4, 20, 8, seed=9), randn(3, 18, 8, seed=10)
        candidates = torch.tensor([[3, 0], [1, 1], [2, 3]] if direction == "t2i" else [[2], [0], [1], [1]])
        options: dict[str, Any] = {"direction": direction, "candidates": candidates}
        scores, argmax = maxsim_argmax(regions, words, backend=backend, **options)
        expected, places = maxsim_argmax(regions, words, backend="reference", **options)
        torch.testing.assert_close(scores, expected)
        assert torch.equal(argmax, places)

    @directions
    def test_nothing(self, backend: str, direction: str) -> None:
        for n_images, n_captions in ((0, 2), (2, 0), (0, 0)):
            regions, words = (torch.randn(*n, 4, requires_grad=True) for n in ((n_images, 3), (n_captions, 5)))
            scores, argmax = maxsim_argmax(regions, words, direction=direction, backend=backend)
            assert argmax.shape == (n_images, n_captions, 5 if direction == "t2i" else 3)
            scores.sum().backward()
            assert not any(side.grad.any() for side in (regions, words))
        regions = torch.randn(2, 3, 4).requires_grad_()
        scores = maxsim_scores(regions, regions, pairs=torch.zeros(0, 2, dtype=torch.int64), backend=backend)
        scores.sum().backward()
        assert not regions.grad.any()

    @pytest.mark.parametrize(
        ("direction", "pooling", "context_pooling", "listed", "normalize", "layout"),
        every_two(
            ["t2i", "i2t"],
            ["avg", "max"],
            ["max", "lse"],
            [False, True],
            [False, True],
            ["masked", "one masked", "packed", "list", "lengths"],
        ),
    )
    def test_masks_and_items_without_rows(
        self, backend: str, direction: str, pooling: str, context_pooling: str, listed: bool, normalize: bool,
        layout: str,
    ) -> None:  # fmt: skip
        results = []
        for name in (backend, "reference"):
            sides = masked_sides()
            leaves = [side.values.clone().requires_grad_() for side in sides]
            options: dict[str, Any] = {"direction": direction, "pooling": pooling, "normalize": normalize}
            options |= {"empty_score": -0.25, "context_pooling": context_pooling, "backend": name}
            if listed:
                options["pairs"] = torch.tensor([[2, 3], [0, 0], [1, 0], [1, 2], [4, 1], [2, 3], [3, 2]])
            arguments: list[Any] = list(leaves)
            if layout == "lengths":
                for side, rows in zip(sides, ("region", "word"), strict=True):
                    options[f"{rows}_lengths"] = side.mask.sum(1)
                leaves = arguments = [randn(*leaf.shape, seed=3).requires_grad_() for leaf in leaves]
            else:
                masked = {"masked": (0, 1), "one masked": (1,)}.get(layout, ())
                for own, (side, rows) in enumerate(zip(sides, ("region", "word"), strict=True)):
                    if own in masked:
                        options[f"{rows}_mask"] = side.mask
                        continue
                    values, offsets = leaves[own][side.mask], side.packed[1]
                    arguments[own] = (values, offsets)
                    if layout == "list":
                        arguments[own] = list(values.split(offsets.diff().tolist()))
            found = (maxsim_argmax if context_pooling == "max" else maxsim_scores)(*arguments, **options)
            scores, *places = found if isinstance(found, tuple) else (found,)
            weights = randn(*scores.shape, seed=5)
            results.append((scores, *places, *torch.autograd.grad((scores * weights).sum(), leaves)))
        assert (results[0][0] == -0.25).any()
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)

    @directions
    @pytest.mark.parametrize("query", ["caption", "image"])
    def test_topk(self, backend: str, direction: str, query: str) -> None:
        regions, words = torch.randint(-2, 3, (9, 5, 4)).float(), torch.randint(-2, 3, (7, 6, 4)).float()
        options: dict[str, Any] = {"direction": direction}
        scores = maxsim_scores(regions, words, backend=backend, **options)
        values, indices = (scores if query == "image" else scores.T).sort(dim=1, descending=True, stable=True)
        found = maxsim_topk(regions, words, k=4, query=query, backend=backend, **options)
        assert torch.equal(found[0], values[:, :4])
        assert torch.equal(found[1], indices[:, :4])
