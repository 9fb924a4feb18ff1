"""`infonce_loss` and `sigmoid_loss` in PyTorch operations against sums over pairs in float64; mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from crossret_kernels import UnsupportedByBackend, infonce_loss, sigmoid_loss
from tests.kernels.contrastive_loss.checks import (
    LOSSES,
    NUMBERS,
    ORACLES,
    REDUCTIONS,
    Checks,
    batches,
    both_losses,
    check_close,
    reduced,
)
from tests.kernels.strategies import examples
from tests.kernels.told import told

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

NAMED = {name: batches(name) for name in LOSSES}


@both_losses
@given(data=st.data(), reduction=st.sampled_from(REDUCTIONS))
@examples(80)
def test_formulas_are_those_of_pairs(name: str, data: st.DataObject, reduction: str) -> None:
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


def test_a_row_without_a_positive_costs_nothing_whatever_it_holds() -> None:
    for value in (float("nan"), 1e33):
        scores = torch.tensor([[-torch.inf, value], [1.0, 2.0]])
        for backend in ("torch", "reference"):
            losses = infonce_loss(scores, 1.0, reduction="none", backend=backend)
            assert losses[0].item() == 0, (value, backend)
    far = infonce_loss(torch.tensor([[1e33, -torch.inf], [0.0, 1.0]]), 1.0, reduction="none", backend="torch")
    assert far.isfinite().all()


@both_losses
def test_numbers_may_be_of_any_floating_type_and_need_no_gradient(name: str) -> None:
    """Only what requires a gradient has one, of its own dtype."""
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = LOSSES[name](scores, *NUMBERS[name])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for which in range(len(NUMBERS[name])):
            given = [torch.tensor(x, dtype=dtype) for x in NUMBERS[name]]
            given[which].requires_grad_()
            loss = LOSSES[name](scores, *given)
            assert torch.equal(loss, expected)
            assert torch.autograd.grad(loss, given[which])[0].dtype == dtype


class TestFormulas(Checks):
    @pytest.fixture(params=["torch", "reference"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


@both_losses
def test_a_batch_of_matrices_by_vmap(name: str) -> None:
    def loss(scores: Tensor) -> Tensor:
        return LOSSES[name](scores, *NUMBERS[name], image_ids=[0, 0, 1, 2])

    batch = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(torch.func.vmap(loss)(batch), torch.stack([loss(scores) for scores in batch]))


TWO, OBLONG = torch.ones(2, 2), torch.ones(2, 5)
# Ids and shapes of scores are checked as those of triplet_loss.
ERRORS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "oblong": (torch.ones(3, 2), (1.0,), {}, ValueError, "scores must have a column for every row's positive, got (3,"),
    "offset": (OBLONG, (1.0,), {"positive_offset": 4}, ValueError, "positive_offset must lie in 0..3, as scores are"),
    "few ids": (OBLONG, (1.0,), {"image_ids": [0, 1]}, ValueError, "image_ids must hold one id for each of 5 columns"),
    "scale text": (TWO, ("1",), {}, TypeError, "scale must be a number, not str"),
    "scale nan": (TWO, (float("nan"),), {}, ValueError, "scale must be a finite number"),
    "scale integers": (TWO, (torch.tensor(1),), {}, TypeError, "scale must be a number or a floating-point scalar"),
    "scales": (TWO, (torch.ones(2),), {}, ValueError, "scale must be a scalar, got shape (2,)"),
    "biases": (TWO, (1.0, torch.ones(2)), {}, ValueError, "bias must be a scalar, got shape (2,)"),
    "smoothing": (TWO, (1.0,), {"label_smoothing": 1.5}, ValueError, "label_smoothing must lie in 0..1, not 1.5"),
    "reduction": (TWO, (1.0,), {"reduction": "max"}, ValueError, "reduction must be one of sum, mean, none, not 'max'"),
    "backend": (TWO, (1.0,), {"backend": "cuda"}, UnsupportedByBackend, "backend 'cuda' cannot serve this call"),
}  # fmt: skip
test_mistakes_are_named = told(
    lambda scores, numbers, options: infonce_loss(scores, *numbers, **options),
    {name: case for name, case in ERRORS.items() if len(case[1]) == 1},
)
test_mistakes_are_named_by_sigmoid_loss = told(
    lambda scores, numbers, options: sigmoid_loss(scores, *(*numbers, -1.0)[:2], **options),
    {name: case for name, case in ERRORS.items() if "label_smoothing" not in case[2]},
)
