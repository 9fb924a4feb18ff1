"""`triplet_loss` in PyTorch operations against loops in float64: values, gradients, extremes, tracing, mistakes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from crossret_kernels import UnsupportedByBackend, triplet_loss
from tests.kernels.contrastive_loss.checks import reduced
from tests.kernels.ranking_loss.checks import (
    ORDERS,
    REDUCTIONS,
    Losses,
    batches,
    check_gradients,
    negatives_of_every_kind,
    oracle,
)
from tests.kernels.strategies import examples
from tests.kernels.told import told

BACKENDS = ("torch", "reference")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@given(
    batch=batches(),
    reduction=st.sampled_from(REDUCTIONS),
    dtype=st.sampled_from(DTYPES),
    backend=st.sampled_from(BACKENDS),
    strided=st.booleans(),
)
@examples(200)
def test_agrees_with_the_loops(
    batch: tuple[Tensor, dict[str, Any]], reduction: str, dtype: torch.dtype, backend: str, strided: bool
) -> None:
    scores, options = batch[0].to(dtype), batch[1]
    losses = oracle(scores.double().numpy(), **options)
    expected = reduced(losses, reduction)
    given_scores = scores.T.contiguous().T if strided else scores
    loss = triplet_loss(given_scores, reduction=reduction, backend=backend, **options)
    assert loss.dtype == dtype
    assert loss.shape == np.shape(expected)
    # Every hinge is rounded at the size of its scores; the losses sum up to n_rows + n_columns of them in each row.
    eps, size = torch.finfo(dtype).eps, 1 + float(scores.double().abs().max()) if scores.numel() else 1.0
    n_rows, n_columns = scores.shape
    within = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    tolerance = 4 * within * size * (n_rows + n_columns + 1) * (1 if reduction == "none" else n_rows + 1)
    np.testing.assert_allclose(loss.double().numpy(), expected, rtol=eps, atol=tolerance)


@given(batch=batches(on_grid=True), reduction=st.sampled_from(REDUCTIONS), dtype=st.sampled_from(DTYPES[1:]))
@examples(40)
def test_gradients_are_those_of_the_chain_in_float64(
    batch: tuple[Tensor, dict[str, Any]], reduction: str, dtype: torch.dtype
) -> None:
    """Of equal hinges the first takes the gradient, as torch's max has it."""
    for backend in ("torch", "reference"):
        check_gradients(*batch, dtype, backend, reduction=reduction)


@given(batch=batches(), reduction=st.sampled_from(REDUCTIONS))
@examples(40)
def test_gradients_are_derivatives(batch: tuple[Tensor, dict[str, Any]], reduction: str) -> None:
    """Random scores, so that no two hinges tie and none is zero."""
    scores, options = batch
    for backend in ("torch", "reference"):
        assert gradcheck(
            lambda s, backend=backend: triplet_loss(s, reduction=reduction, backend=backend, **options),
            (scores.requires_grad_(),),
            fast_mode=True,
        )


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_gradients_of_large_orders_keep_their_digits(backend: str) -> None:
    """Equal hinges share the gradient, whatever the power of what rounds them."""
    scores = torch.randint(-8, 9, (17, 17), generator=torch.Generator().manual_seed(0)).double() / 8
    check_gradients(scores, {"margin": 0.0, "negatives": "softmax", "p": 1e6}, torch.float32, backend)


def test_second_derivatives_are_served_by_torch_alone() -> None:
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(7)).requires_grad_()
    loss = triplet_loss(scores, negatives="softmax", backend="torch")
    (gradient,) = torch.autograd.grad(loss, scores, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), scores)[0].isfinite().all()


def test_ids_may_be_tensors_of_any_integer_type() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = triplet_loss(scores, image_ids=[0, 0, 1, 2], caption_ids=[5, 6, 6, 7])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ids = torch.tensor([0, 0, 1, 2], dtype=dtype)
        assert torch.equal(triplet_loss(scores, image_ids=ids, caption_ids=[5, 6, 6, 7]), expected)


def test_captions_of_one_image_are_no_negatives() -> None:
    """Rows 0 and 1 are one image with two captions; the strongest score of all is between them."""
    scores = torch.tensor([[0.5, 0.9, 0.4], [0.9, 0.5, 0.3], [0.2, 0.1, 0.5]], dtype=torch.float64)
    per_positive = triplet_loss(scores, image_ids=[7, 7, 8], reduction="none")
    torch.testing.assert_close(per_positive, torch.tensor([0.1, 0.0, 0.1], dtype=torch.float64))
    assert torch.equal(triplet_loss(scores, image_ids=[0, 1, 2]), triplet_loss(scores))


def test_softmax_runs_from_the_sum_to_the_hardest() -> None:
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    losses = {
        name: triplet_loss(scores, reduction="none", **options)
        for name, options in (
            ("sum", {"negatives": "sum"}),
            ("hardest", {"negatives": "hardest"}),
            *((p, {"negatives": "softmax", "p": p}) for p in (1.0, 4.0, 64.0, 1e6)),
        )
    }
    torch.testing.assert_close(losses[1.0], losses["sum"])
    torch.testing.assert_close(losses[1e6], losses["hardest"], rtol=1e-5, atol=0)
    for larger, smaller in itertools.pairwise((1.0, 4.0, 64.0, 1e6)):
        assert (losses[larger] >= losses[smaller]).all()
    assert (losses[64.0] <= losses["hardest"] * 5 ** (1 / 64)).all()


@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [
        (torch.float64, 1e-300, 1e-12),
        (torch.float64, 1e300, 1e-12),
        (torch.float32, 1e-37, 1e-4),
        (torch.float32, 1e36, 1e-4),
        (torch.bfloat16, 1e-30, 0.1),
        (torch.float16, 1e-3, 0.02),
        (torch.float16, 1e3, 0.02),
    ],
)
def test_no_order_overflows_or_underflows(dtype: torch.dtype, scale: float, tolerance: float, p: float) -> None:
    """The loss scales with the scores where the margin is zero, and its gradient does not change."""
    generator = torch.Generator().manual_seed(2)
    base = torch.rand(5, 5, generator=generator, dtype=torch.float64).fill_diagonal_(0)
    scores = (base * scale).to(dtype).requires_grad_()
    loss = triplet_loss(scores, margin=0.0, negatives="softmax", p=p, reduction="none")
    loss.sum().backward()
    exact = (scores.detach().double() / scale).requires_grad_()
    expected = triplet_loss(exact, margin=0.0, negatives="softmax", p=p, reduction="none")
    expected.sum().backward()
    torch.testing.assert_close(loss.double() / scale, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


class TestFormulas(Losses):
    @pytest.fixture(params=["torch", "reference"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


@negatives_of_every_kind
def test_traced_without_values_and_by_vmap(negatives: str) -> None:
    def loss(scores: Tensor) -> Tensor:
        return triplet_loss(scores, negatives=negatives, image_ids=[0, 0, 1, 2])

    batch = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(3))
    expected = torch.stack([loss(scores) for scores in batch])
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    graph = make_fx(loss, tracing_mode="symbolic")(batch[0])
    for traced in (compiled, graph):
        torch.testing.assert_close(torch.stack([traced(scores) for scores in batch]), expected)
    torch.testing.assert_close(torch.func.vmap(loss)(batch), expected)


TWO, OBLONG = torch.ones(2, 2), torch.ones(2, 5)
ERRORS: tuple[tuple[str, Any, dict[str, Any], type[Exception], str], ...] = (
    ("sparse", TWO.to_sparse(), {}, TypeError, "scores must be a dense tensor, not a torch.sparse_coo one"),
    ("mkldnn", TWO.to_mkldnn(), {}, TypeError, "scores must be a dense tensor, not a torch._mkldnn one"),
    ("meta", TWO.to("meta"), {}, ValueError, "scores is on the meta device, which holds no values"),
    ("float8", TWO.to(torch.float8_e5m2), {}, TypeError, "scores must be float32, float64, bfloat16 or float16, not"),
    ("list", [[0.0]], {}, TypeError, "scores must be a floating-point tensor, not list"),
    ("masked", np.ma.masked_array([[0.0]], [[1]]), {}, TypeError, "scores must be a floating-point tensor, not Masked"),
    ("integers", TWO.long(), {}, TypeError, "scores must be float32, float64, bfloat16 or float16"),
    ("oblong", torch.ones(3, 2), {}, ValueError, "scores must have a column for every row's positive, got (3, 2)"),
    ("vector", torch.ones(3), {}, ValueError, "scores must have shape (n_rows, n_columns), got (3,)"),
    ("offset", OBLONG, {"positive_offset": 4}, ValueError,
     "positive_offset must lie in 0..3, as scores are 2 by 5, not 4"),
    ("negative offset", OBLONG, {"positive_offset": -1}, ValueError, "positive_offset must lie in 0..3"),
    ("offset flag", OBLONG, {"positive_offset": True}, TypeError, "positive_offset must be an integer"),
    ("few ids", OBLONG, {"image_ids": [0, 1]}, ValueError, "image_ids must hold one id for each of 5 columns, got (2"),
    ("float ids", TWO, {"image_ids": [0.0, 1.0]}, TypeError, "image_ids[0] must be an integer, not float"),
    ("float tensor", TWO, {"caption_ids": torch.ones(2)}, TypeError, "caption_ids must be integers"),
    ("huge ids", TWO, {"image_ids": [0, 2**64]}, ValueError, "image_ids[1] is 18446744073709551616"),
    ("an id", TWO, {"image_ids": 3}, TypeError, "image_ids must be an integer tensor or a list"),
    ("negatives", TWO, {"negatives": "all"}, ValueError, "negatives must be one of hardest, sum, softmax, not 'all'"),
    ("reduction", TWO, {"reduction": "max"}, ValueError, "reduction must be one of sum, mean, none, not 'max'"),
    ("margin nan", TWO, {"margin": float("nan")}, ValueError, "margin must be a finite number"),
    ("margin text", TWO, {"margin": "0.2"}, TypeError, "margin must be a number, not str"),
    ("p small", TWO, {"p": 0.5}, ValueError, "p must be at least 1, not 0.5"),
    ("p infinite", TWO, {"p": float("inf")}, ValueError, "p must be a finite number"),
    ("backend", TWO, {"backend": "cuda"}, UnsupportedByBackend, "backend 'cuda' cannot serve this call"),
)  # fmt: skip
test_mistakes_are_named = told(
    lambda scores, options: triplet_loss(scores, **options), {name: case for name, *case in ERRORS}
)
