"""infonce_loss and sigmoid_loss by every backend against pairs in float64: values, gradients, extremes, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from crossret_kernels import UnsupportedByBackend, infonce_loss, sigmoid_loss
from crossret_kernels.promises import GRADIENTS, RESULTS
from tests.kernels.contrastive_loss.checks import (
    LOSSES,
    ORACLES,
    REDUCTIONS,
    Checks,
    batches,
    both_losses,
    check_close,
    reduced,
)
from tests.kernels.strategies import examples

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Batch = tuple[Tensor, tuple[float, ...], dict[str, Any]]
NAMED = {name: batches(name) for name in LOSSES}


@both_losses
@given(data=st.data(), reduction=st.sampled_from(REDUCTIONS))
@examples(80)
def test_formulas_are_those_of_pairs(name: str, data: st.DataObject, reduction: str) -> None:
    """In float64, by "torch" and by "reference"."""
    scores, numbers, options = data.draw(NAMED[name])
    expected = reduced(ORACLES[name](scores.numpy(), *numbers, **options), reduction)
    for backend in ("torch", "reference"):
        loss = LOSSES[name](scores, *numbers, reduction=reduction, backend=backend, **options)
        assert loss.dtype == torch.float64
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12, atol=1e-11)


@both_losses
@given(data=st.data(), reduction=st.sampled_from(REDUCTIONS), dtype=st.sampled_from(DTYPES), strided=st.booleans())
@examples(40)
def test_narrow_scores_are_computed_with_in_float32(
    name: str, data: st.DataObject, reduction: str, dtype: torch.dtype, strided: bool
) -> None:
    scores, numbers, options = data.draw(NAMED[name])
    scores = scores.T.contiguous().T if strided else scores
    for backend in ("torch", "reference"):
        check_close(name, scores, numbers, dtype, backend, reduction=reduction, **options)


@both_losses
@given(data=st.data(), reduction=st.sampled_from(REDUCTIONS))
@examples(30)
def test_gradients_are_derivatives(name: str, data: st.DataObject, reduction: str) -> None:
    """By scores, scale and bias. Where the greatest differ by much, finite differences see nothing of the rest."""
    scores, numbers, options = data.draw(NAMED[name])
    scores = scores / max(1.0, float(scores[~scores.isneginf()].abs().max()) if scores.isfinite().any() else 1.0)
    left_out = scores.isneginf()
    leaves = [scores.masked_fill(left_out, 0).requires_grad_()]
    leaves += [torch.tensor(min(number, 4.0), dtype=torch.float64, requires_grad=True) for number in numbers]
    for backend in ("torch", "reference"):
        assert gradcheck(
            lambda s, *others, backend=backend: LOSSES[name](
                s.masked_fill(left_out, -torch.inf), *others, reduction=reduction, backend=backend, **options
            ),
            leaves,
            fast_mode=True,
        )


@both_losses
def test_second_derivatives_are_served_by_torch_alone(name: str) -> None:
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64).requires_grad_()
    numbers = [torch.tensor(2.0, dtype=torch.float64, requires_grad=True)] * (1 if name == "infonce" else 2)
    assert torch.autograd.gradgradcheck(
        lambda *given: LOSSES[name](*given, backend="torch"), (scores, *numbers), fast_mode=True
    )


@both_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_loses_no_more_than_what_eager_pytorch_does(name: str, dtype: torch.dtype, scale: float) -> None:
    """Values twice, gradients three times as much, beside ``cross_entropy`` both ways and ``logsigmoid`` in float32."""
    n = 300
    generator = torch.Generator().manual_seed(5)
    scores = (torch.randn(n, n, generator=generator) * 0.1 + 0.2 * torch.eye(n)).to(dtype).float()
    numbers = (scale,) if name == "infonce" else (scale, -10.0)

    def eager(scores: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = scale * scores if bias is None else scale * scores + bias
        if bias is None:
            own = torch.arange(n)
            return (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2
        signs = 2 * torch.eye(n, dtype=scores.dtype) - 1
        return -functional.logsigmoid(signs * logits).sum() / n

    def made(loss: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [scores.to(dtype).requires_grad_(), *(torch.tensor(x, dtype=dtype).requires_grad_() for x in numbers)]
        value = loss(*leaves)
        return tuple(found.double() for found in (value, *torch.autograd.grad(value, leaves)))

    exact, rounded = made(eager, torch.float64), made(eager, torch.float32)
    made_here = made(lambda *leaves: LOSSES[name](*leaves, backend="torch"), torch.float32)
    for index, (ours, theirs, truth) in enumerate(zip(made_here, rounded, exact, strict=True)):
        error, allowed = ((x - truth).abs().max() for x in (ours, theirs))
        unit = torch.finfo(torch.float32).eps * truth.abs().max()
        assert error <= (GRADIENTS if index else RESULTS) * allowed + 2 * unit


def test_a_row_without_a_positive_costs_nothing_whatever_it_holds() -> None:
    for value in (float("nan"), 1e33):
        scores = torch.tensor([[-torch.inf, value], [1.0, 2.0]])
        for backend in ("torch", "reference"):
            losses = infonce_loss(scores, 1.0, reduction="none", backend=backend)
            assert losses[0].item() == 0, (value, backend)
    far = infonce_loss(torch.tensor([[1e33, -torch.inf], [0.0, 1.0]]), 1.0, reduction="none", backend="torch")
    assert far.isfinite().all()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_uniform_batch_costs_its_logarithm(n: int) -> None:
    """And half of a batch whose pairs are told apart at all costs nothing."""
    assert infonce_loss(torch.zeros(n, n), 3.0).item() == pytest.approx(np.log(n), abs=1e-6)
    assert infonce_loss(1e3 * torch.eye(n), 1.0).item() == 0.0
    assert sigmoid_loss(torch.zeros(n, n), 3.0, 0.0).item() == pytest.approx(n * np.log(2))


def test_positives_share_the_target() -> None:
    """Of images 7, 7, 8 the first two pairs are positives of each other: the loss is least where they are as likely."""
    ids = {"image_ids": [7, 7, 8]}
    even = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64).requires_grad_()
    loss = infonce_loss(even, 50.0, **ids)
    assert loss.item() == pytest.approx(2 / 3 * np.log(2), rel=1e-9)
    assert torch.autograd.grad(loss, even)[0].abs().max() < 1e-12
    assert infonce_loss(torch.eye(3), 50.0, **ids) > 10
    assert sigmoid_loss(even, 100.0, -50.0, **ids).item() < 1e-12


def test_ids_may_be_tensors_of_any_integer_type() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = infonce_loss(scores, 2.0, image_ids=[0, 0, 1, 2], caption_ids=[5, 6, 6, 7])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ids = torch.tensor([0, 0, 1, 2], dtype=dtype)
        assert torch.equal(infonce_loss(scores, 2.0, image_ids=ids, caption_ids=[5, 6, 6, 7]), expected)


@both_losses
def test_numbers_may_be_of_any_floating_type_and_need_no_gradient(name: str) -> None:
    """Only what requires a gradient has one, of its own dtype."""
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    numbers = (2.0,) if name == "infonce" else (2.0, -1.0)
    expected = LOSSES[name](scores, *numbers)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for which in range(len(numbers)):
            given = [torch.tensor(x, dtype=dtype) for x in numbers]
            given[which].requires_grad_()
            loss = LOSSES[name](scores, *given)
            assert torch.equal(loss, expected)
            assert torch.autograd.grad(loss, given[which])[0].dtype == dtype


class TestFormulas(Checks):
    @pytest.fixture(params=["torch", "reference"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


@both_losses
def test_transformed(name: str) -> None:
    numbers = (2.0,) if name == "infonce" else (2.0, -1.0)

    def loss(scores: Tensor) -> Tensor:
        return LOSSES[name](scores, *numbers, image_ids=[0, 0, 1, 2])

    batch = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(torch.func.vmap(loss)(batch), torch.stack([loss(scores) for scores in batch]))
    (gradient,) = torch.autograd.grad(loss(leaf := batch[0].clone().requires_grad_()), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(batch[0]), gradient)


TWO, OBLONG = torch.ones(2, 2), torch.ones(2, 5)
ERRORS: tuple[tuple[str, Any, Any, dict[str, Any], type[Exception], str], ...] = (
    ("oblong", torch.ones(3, 2), 1.0, {}, ValueError, "scores must have a column for every row's positive, got (3, 2)"),
    ("offset", OBLONG, 1.0, {"positive_offset": 4}, ValueError, "positive_offset must lie in 0..3, as scores are 2 by"),
    ("few ids", OBLONG, 1.0, {"image_ids": [0, 1]}, ValueError, "image_ids must hold one id for each of 5 columns"),
    ("scale text", TWO, "1", {}, TypeError, "scale must be a number, not str"),
    ("scale nan", TWO, float("nan"), {}, ValueError, "scale must be a finite number"),
    ("scale integers", TWO, torch.tensor(1), {}, TypeError, "scale must be a number or a floating-point scalar, not"),
    ("scales", TWO, torch.ones(2), {}, ValueError, "scale must be a scalar, got shape (2,)"),
    ("smoothing", TWO, 1.0, {"label_smoothing": 1.5}, ValueError, "label_smoothing must lie in 0..1, not 1.5"),
    ("reduction", TWO, 1.0, {"reduction": "max"}, ValueError, "reduction must be one of sum, mean, none, not 'max'"),
    ("backend", TWO, 1.0, {"backend": "cuda"}, UnsupportedByBackend, "backend 'cuda' cannot serve this call"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "scale", "options", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in ERRORS]
)
def test_bad_input_is_named(
    scores: Any, scale: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        infonce_loss(scores, scale, **options)
    if "label_smoothing" not in options:
        with pytest.raises(error, match=re.escape(message)):
            sigmoid_loss(scores, scale, -1.0, **options)


def test_bias_is_named() -> None:
    with pytest.raises(ValueError, match=re.escape("bias must be a scalar, got shape (2,)")):
        sigmoid_loss(TWO, 1.0, torch.ones(2))
