"""compat.scan against SCAN's published formulas; where the published code crashes or gives NaN, ours does not."""

from __future__ import annotations

import inspect
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.compat.scan import ContrastiveLoss, func_attention, xattn_score_i2t, xattn_score_t2i
from tests.compat import published
from tests.compat.published import AGGREGATIONS, DIRECTIONS, NORMS, batch, options

SCORES: dict[str, Callable[..., Tensor]] = {"t2i": xattn_score_t2i, "i2t": xattn_score_i2t}
LENGTHS = (4, 1, 6)
TOLERANCES = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 2e-4, "atol": 2e-5}}

directions = pytest.mark.parametrize("direction", DIRECTIONS)
norms = pytest.mark.parametrize("norm", NORMS)
aggregations = pytest.mark.parametrize("aggregation", AGGREGATIONS)
precisions = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def value_and_gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """What a function of tensors gives, and the gradients of a weighted sum of it; all as float64."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    value = function(*leaves)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    gradients = torch.autograd.grad((value * weights).sum(), leaves)
    return [tensor.double() for tensor in (value.detach(), *gradients)]


def check(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], dtype: torch.dtype, *tensors: Tensor) -> None:
    rounded = [tensor.to(dtype) for tensor in tensors]
    found = value_and_gradients(ours, *rounded)
    expected = value_and_gradients(theirs, *(tensor.double() for tensor in rounded))
    torch.testing.assert_close(found, expected, **TOLERANCES[dtype])


@directions
@norms
@aggregations
@precisions
def test_scores_and_gradients_are_those_of_the_formulas(
    direction: str, norm: str, aggregation: str, dtype: torch.dtype
) -> None:
    opt = options(direction, norm, aggregation)
    check(
        lambda images, captions: SCORES[direction](images, captions, list(LENGTHS), opt),
        lambda images, captions: published.scores(images, captions, LENGTHS, opt),
        dtype,
        *batch(lengths=LENGTHS),
    )


@norms
@precisions
@pytest.mark.parametrize("sizes", [(4, 3), (1, 3), (3, 1)], ids=str)
def test_attention_is_that_of_the_formulas(norm: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    query, context = (torch.randn(2, size, 5, generator=generator, dtype=torch.float64) for size in sizes)

    def theirs(query: Tensor, context: Tensor) -> Tensor:
        parts = [published.attend(*item, norm, 4.0) for item in zip(query, context, strict=True)]
        return torch.cat([torch.stack(kind).flatten() for kind in zip(*parts, strict=True)])

    def ours(query: Tensor, context: Tensor) -> Tensor:
        attended, attention = func_attention(query, context, Namespace(raw_feature_norm=norm), smooth=4.0)
        assert attended.shape == query.shape
        assert attention.shape == (2, sizes[1], sizes[0])
        return torch.cat([attended.flatten(), attention.flatten()])

    check(ours, theirs, dtype, query, context)


@directions
@aggregations
@pytest.mark.parametrize(("n_image", "lengths"), [(1, (4, 2)), (3, (1, 1)), (1, (1,))], ids=str)
def test_one_image_and_one_word_have_scores(
    direction: str, aggregation: str, n_image: int, lengths: tuple[int, ...]
) -> None:
    """The published code squeezes such an axis away and then sums over it."""
    opt = options(direction, aggregation=aggregation)
    check(
        lambda images, captions: SCORES[direction](images, captions, lengths, opt),
        lambda images, captions: published.scores(images, captions, lengths, opt),
        torch.float64,
        *batch(n_image, lengths),
    )


@norms
@directions
def test_gradients_are_finite_where_norms_vanish(direction: str, norm: str) -> None:
    """Of a region and a word of zeros; in the published code they are NaN."""
    opt = options(direction, norm)
    images, captions = (side.nan_to_num(0) for side in batch(lengths=LENGTHS))
    images[1, 2], captions[2, 0] = 0, 0
    found = value_and_gradients(lambda *pair: SCORES[direction](*pair, LENGTHS, opt), images, captions)
    torch.testing.assert_close(found[0], published.scores(images, captions, LENGTHS, opt))
    found += value_and_gradients(lambda *pair: func_attention(*pair, opt, 9.0)[0], captions, images)
    assert all(tensor.isfinite().all() for tensor in found)


@directions
@precisions
@pytest.mark.parametrize("max_violation", [False, True])
@pytest.mark.parametrize("margin", [0, 0.2])
def test_the_loss_is_that_of_the_formulas(
    direction: str, dtype: torch.dtype, max_violation: bool, margin: float
) -> None:
    opt = options(direction)
    module = ContrastiveLoss(opt, margin=margin, max_violation=max_violation)
    assert not list(module.parameters())
    check(
        lambda images, captions: module(images, captions, list(LENGTHS)),
        lambda images, captions: published.loss(
            published.scores(images, captions, LENGTHS, opt), margin, max_violation
        ),
        dtype,
        *batch(lengths=LENGTHS),
    )


def test_a_batch_of_one_pair_loses_nothing() -> None:
    images, captions = batch(1, (4,))
    found = value_and_gradients(lambda *pair: ContrastiveLoss(options("t2i"), 0.2, True)(*pair, [4]), images, captions)
    assert all(not tensor.any() for tensor in found)


def test_signatures_are_the_published_ones() -> None:
    functions = (func_attention, xattn_score_t2i, xattn_score_i2t, ContrastiveLoss, ContrastiveLoss.forward)
    names = [list(inspect.signature(function).parameters) for function in functions]
    score = ["images", "captions", "cap_lens", "opt"]
    loss = ["opt", "margin", "max_violation"]
    assert names == [["query", "context", "opt", "smooth", "eps"], score, score, loss, ["self", "im", "s", "s_l"]]


@pytest.mark.parametrize(
    ("changes", "lengths", "message"),
    [
        ({"agg_func": "Median"}, LENGTHS, "opt.agg_func must be one of LogSumExp, Max, Sum, Mean, not 'Median'"),
        ({"cross_attn": "all"}, LENGTHS, "opt.cross_attn must be one of t2i, i2t, not 'all'"),
        ({"lambda_softmax": math.inf}, LENGTHS, "lambda_softmax must be a finite number"),
        ({"lambda_lse": 0.0}, LENGTHS, "lambda_lse must be above 0"),
        ({}, [4, 0, 6], r"word_lengths\[1\] is 0: every caption needs at least one row"),
        ({}, [4, 1, 6, 2], r"word_lengths must hold one length for each of 3 captions, got \(4,\)"),
    ],
)
def test_options_and_lengths_that_mean_nothing_are_named(
    changes: dict[str, Any], lengths: Sequence[int], message: str
) -> None:
    opt = Namespace(**{**vars(options("t2i")), **changes})
    with pytest.raises(ValueError, match=f"^{message}"):
        ContrastiveLoss(opt)(*batch(lengths=LENGTHS), lengths)


def test_shapes_that_do_not_agree_are_named() -> None:
    images, captions = batch(lengths=LENGTHS)
    with pytest.raises(ValueError, match="im and s must match one to one, got 2 images and 3 captions"):
        ContrastiveLoss(options("t2i"))(images[:2], captions, LENGTHS)
    with pytest.raises(ValueError, match=r"query and context must have shapes .* \(3, 6, 5\) and \(2, 3, 5\)"):
        func_attention(captions, images[:2], options("t2i"), 9.0)
    with pytest.raises(TypeError, match=r"^query and context must be of one dtype and on one device"):
        func_attention(captions[:2].half(), images[:2], options("t2i"), 9.0)
