"""triplet_loss against loops in float64: negatives, ids, reductions, gradients, extremes, tracing and errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from crossret_kernels import UnsupportedByBackend, triplet_loss
from tests.kernels.strategies import examples

NEGATIVES = ("hardest", "sum", "softmax")
REDUCTIONS = ("sum", "mean", "none")
ORDERS = (1.0, 1.5, 2.0, 8.0, 64.0)

negatives_of_every_kind = pytest.mark.parametrize("negatives", NEGATIVES)


def pooled(hinges: list[float], negatives: str, p: float) -> float:
    largest = max(hinges, default=0.0)
    if negatives == "sum":
        return sum(hinges)
    if negatives == "hardest" or largest == 0:
        return largest
    return largest * sum((hinge / largest) ** p for hinge in hinges) ** (1 / p)


def oracle(
    scores: np.ndarray,
    *,
    margin: float,
    negatives: str,
    p: float,
    image_ids: list[int] | None,
    caption_ids: list[int] | None,
) -> np.ndarray:
    """The loss of every positive, of its row plus its column."""
    n = len(scores)
    losses = np.zeros(n)

    def differ(i: int, j: int) -> bool:
        return i != j and not any(ids is not None and ids[i] == ids[j] for ids in (image_ids, caption_ids))

    for i in range(n):
        others = [j for j in range(n) if differ(i, j)]
        row = [max(0.0, margin - scores[i, i] + scores[i, j]) for j in others]
        column = [max(0.0, margin - scores[i, i] + scores[j, i]) for j in others]
        losses[i] = pooled(row, negatives, p) + pooled(column, negatives, p)
    return losses


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, dict[str, Any]]:
    n = draw(st.integers(0, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.randn(n, n, generator=generator, dtype=torch.float64) * draw(st.sampled_from((0.1, 1.0, 10.0)))
    ids = st.none() | st.lists(st.integers(-1, 3), min_size=n, max_size=n)
    return scores, {
        "margin": draw(st.sampled_from((0.0, 0.2, 1.0))),
        "negatives": draw(st.sampled_from(NEGATIVES)),
        "p": draw(st.sampled_from(ORDERS)),
        "image_ids": draw(ids),
        "caption_ids": draw(ids),
    }


@given(
    batch=batches(),
    reduction=st.sampled_from(REDUCTIONS),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.bfloat16, torch.float16)),
    strided=st.booleans(),
)
@examples(200)
def test_agrees_with_the_loops(
    batch: tuple[Tensor, dict[str, Any]], reduction: str, dtype: torch.dtype, strided: bool
) -> None:
    scores, options = batch[0].to(dtype), batch[1]
    losses = oracle(scores.double().numpy(), **options)
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / max(len(losses), 1)}[reduction]
    loss = triplet_loss(scores.T.contiguous().T if strided else scores, reduction=reduction, **options)
    assert loss.dtype == dtype
    assert loss.shape == np.shape(expected)
    # Every hinge is rounded at the size of its scores; the losses sum up to 2n of them in each of n rows.
    size = 1 + float(batch[0].abs().max()) if scores.numel() else 1.0
    tolerance = 4 * torch.finfo(dtype).eps * size * (2 * len(scores) + 1)
    tolerance *= 1 if reduction == "none" else len(scores) + 1
    np.testing.assert_allclose(loss.double().numpy(), expected, rtol=0, atol=tolerance)


@given(batch=batches(), reduction=st.sampled_from(REDUCTIONS))
@examples(40)
def test_gradients_are_derivatives(batch: tuple[Tensor, dict[str, Any]], reduction: str) -> None:
    """Random scores, so that no two hinges tie and none is zero."""
    scores, options = batch
    assert gradcheck(
        lambda s: triplet_loss(s, reduction=reduction, **options), (scores.requires_grad_(),), fast_mode=True
    )


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


@negatives_of_every_kind
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize(
    ("scores", "margin", "image_ids"),
    [
        (torch.eye(4) * 10, 0.2, None),
        (torch.zeros(4, 4), 0.0, None),
        (torch.ones(4, 4), 0.2, [3, 3, 3, 3]),
        (torch.ones(1, 1), 0.2, None),
        (torch.ones(0, 0), 0.2, None),
    ],
    ids=["negative hinges", "hinges of exactly zero", "one image", "one pair", "no pair"],
)
def test_zero_losses_have_zero_gradients(
    negatives: str, p: float, scores: Tensor, margin: float, image_ids: list[int] | None
) -> None:
    for reduction in REDUCTIONS:
        leaf = scores.clone().requires_grad_()
        loss = triplet_loss(
            leaf, margin=margin, negatives=negatives, p=p, image_ids=image_ids, reduction=reduction, backend="torch"
        )
        assert torch.equal(loss, torch.zeros_like(loss))
        assert torch.equal(torch.autograd.grad(loss.sum(), leaf)[0], torch.zeros_like(scores))


@negatives_of_every_kind
def test_nan_is_not_hidden(negatives: str) -> None:
    scores = torch.zeros(3, 3)
    scores[0, 1] = float("nan")
    per_positive = triplet_loss(scores, negatives=negatives, reduction="none")
    assert per_positive.isnan().tolist() == [True, True, False]


@negatives_of_every_kind
def test_traced_without_values_and_transformed(negatives: str) -> None:
    def loss(scores: Tensor) -> Tensor:
        return triplet_loss(scores, negatives=negatives, image_ids=[0, 0, 1, 2])

    batch = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(3))
    expected = torch.stack([loss(scores) for scores in batch])
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    graph = make_fx(loss, tracing_mode="symbolic")(batch[0])
    for traced in (compiled, graph):
        torch.testing.assert_close(torch.stack([traced(scores) for scores in batch]), expected)
    torch.testing.assert_close(torch.func.vmap(loss)(batch), expected)
    (gradient,) = torch.autograd.grad(loss(leaf := batch[0].clone().requires_grad_()), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(batch[0]), gradient)
    with FakeTensorMode():
        assert loss(torch.empty(4, 4)).shape == ()


UNSUPPORTED: dict[str, tuple[Callable[[Tensor], Tensor], type[Exception], str]] = {
    "coo": (Tensor.to_sparse, TypeError, "must be a dense tensor, not a torch.sparse_coo one"),
    "csr": (Tensor.to_sparse_csr, TypeError, "must be a dense tensor, not a torch.sparse_csr one"),
    "csc": (Tensor.to_sparse_csc, TypeError, "must be a dense tensor, not a torch.sparse_csc one"),
    "mkldnn": (Tensor.to_mkldnn, TypeError, "must be a dense tensor, not a torch._mkldnn one"),
    "nested": (
        lambda scores: torch.nested.nested_tensor(list(scores)),
        TypeError,
        "must be a dense tensor, not a nested one",
    ),
    "jagged": (
        lambda scores: torch.nested.nested_tensor(list(scores), layout=torch.jagged),
        TypeError,
        "must be a dense tensor, not a nested one",
    ),
    "meta": (lambda scores: scores.to("meta"), ValueError, "is on the meta device, which holds no values"),
    **{
        str(dtype): (
            lambda scores, dtype=dtype: scores.to(dtype),
            TypeError,
            f"must be float32, float64, bfloat16 or float16, not {dtype}",
        )
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.complex64, torch.bool)
    },
}


@pytest.mark.filterwarnings("ignore:.*(prototype stage|beta state)")  # nested and compressed sparse tensors announce it
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_scores_that_are_no_numbers_in_rows_are_named(kind: str) -> None:
    make, error, message = UNSUPPORTED[kind]
    with pytest.raises(error, match=re.escape(f"scores {message}")):
        triplet_loss(make(torch.rand(3, 3)))


ERRORS: tuple[tuple[str, Any, dict[str, Any], type[Exception], str], ...] = (
    ("list", [[0.0]], {}, TypeError, "scores must be a floating-point tensor, not list"),
    ("masked", np.ma.masked_array([[0.0]], [[1]]), {}, TypeError, "scores must be a floating-point tensor, not Masked"),
    ("integers", torch.ones(2, 2).long(), {}, TypeError, "scores must be float32, float64, bfloat16 or float16"),
    ("oblong", torch.ones(2, 3), {}, ValueError, "scores must be square, one matching caption an image, got (2, 3)"),
    ("vector", torch.ones(3), {}, ValueError, "scores must be square"),
    ("batch", torch.ones(1, 2, 2), {}, ValueError, "scores must be square"),
    *(
        (name, torch.ones(2, 2), options, error, message)
        for name, options, error, message in (
            (
                "negatives",
                {"negatives": "all"},
                ValueError,
                "negatives must be one of hardest, sum, softmax, not 'all'",
            ),
            ("reduction", {"reduction": "max"}, ValueError, "reduction must be one of sum, mean, none, not 'max'"),
            ("margin nan", {"margin": float("nan")}, ValueError, "margin must be a finite number"),
            ("margin text", {"margin": "0.2"}, TypeError, "margin must be a number, not str"),
            ("p small", {"p": 0.5}, ValueError, "p must be at least 1, not 0.5"),
            ("p infinite", {"p": float("inf")}, ValueError, "p must be a finite number"),
            ("p nan", {"p": float("nan")}, ValueError, "p must be a finite number"),
            ("p nothing", {"p": None}, TypeError, "p must be a number, not NoneType"),
            (
                "few ids",
                {"image_ids": [1]},
                ValueError,
                "image_ids must hold one id for each of 2 rows, got shape (1,)",
            ),
            ("a column", {"caption_ids": torch.ones(2, 1).long()}, ValueError, "caption_ids must hold one id for each"),
            ("float ids", {"image_ids": [0.0, 1.0]}, TypeError, "image_ids[0] must be an integer, not float"),
            ("float tensor", {"caption_ids": torch.ones(2)}, TypeError, "caption_ids must be integers"),
            ("bool ids", {"caption_ids": [1, True]}, TypeError, "caption_ids[1] must be an integer, not bool"),
            ("huge ids", {"image_ids": [0, 2**64]}, ValueError, "image_ids[1] is 18446744073709551616"),
            (
                "masked ids",
                {"caption_ids": np.ma.masked_array([0, 1], [False, True])},
                TypeError,
                "caption_ids must be an array without a mask, not a MaskedArray",
            ),
            ("meta ids", {"image_ids": torch.ones(2, device="meta").long()}, ValueError, "image_ids is on the meta"),
            ("sparse ids", {"image_ids": torch.ones(2).long().to_sparse()}, TypeError, "image_ids must be a dense"),
            ("an id", {"image_ids": 3}, TypeError, "image_ids must be an integer tensor or a list"),
            ("backend name", {"backend": "gpu"}, ValueError, "backend must be one of"),
            ("backend", {"backend": "cpu"}, UnsupportedByBackend, "backend 'cpu' cannot serve triplet_loss"),
        )
    ),
)


@pytest.mark.parametrize(
    ("scores", "options", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in ERRORS]
)
def test_bad_input_is_named(scores: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        triplet_loss(scores, **options)
