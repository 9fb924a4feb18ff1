"""The ranking losses' CUDA kernels on the CPU, by `triplet_loss`, against loops in float64 and the chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import triplet_loss
from crossret_kernels.ranking_loss.options import LossOptions
from tests.kernels.ranking_losses import (
    ORDERS,
    REDUCTIONS,
    Kernels,
    batches,
    negatives_of_every_kind,
    oracle,
)
from tests.kernels.strategies import examples
from tests.simt.launches import SCHEDULES, Device, Schedule

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MARGIN = 0.25

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def defaults(device: Device) -> None:
    device.choose()


def padded(scores: Tensor, padding: int, shift: int) -> Tensor:
    """The same scores, rows `padding` elements apart and `shift` elements into their memory; NaN lies between."""
    n_rows, n_columns = scores.shape
    stride = n_columns + padding
    memory = torch.full((n_rows * stride + shift,), float("nan"), dtype=scores.dtype)
    spread = memory[shift:].view(n_rows, stride)[:, :n_columns]
    spread.copy_(scores)
    return spread


def derived(scores: Tensor, backend: str, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient through a weight a loss, which lie two elements apart."""
    leaf = scores.detach().requires_grad_()
    loss = triplet_loss(leaf, backend=backend, **options)
    weights = torch.linspace(1.25, 2, 2 * loss.numel()).to(loss.dtype)[::2]
    return loss.detach(), torch.autograd.grad(loss, leaf, weights.view_as(loss))[0]


def unrounded(
    scores: Tensor, *, image_ids: list[int] | None, caption_ids: list[int] | None, positive_offset: int, **options: Any
) -> Tensor:
    """The loss as the kernels make it."""
    ids = [None if given is None else torch.tensor(given, dtype=torch.int64) for given in (image_ids, caption_ids)]
    loss, _ = torch.ops.crossret.triplet_loss_cuda(scores, *ids, *LossOptions(**options).codes, positive_offset)
    return loss


def check(scores: Tensor, dtype: torch.dtype, *, padding: int = 0, shift: int = 0, **options: Any) -> None:
    """The loss and the gradient, against float64."""
    narrow = padded(scores.to(dtype), padding, shift)
    loss, gradient = derived(narrow, "cuda", **options)
    expected, slopes = derived(scores, "torch", **options)
    losses = {name: value for name, value in options.items() if name != "reduction"}
    each = triplet_loss(scores, reduction="none", backend="torch", **losses)
    np.testing.assert_allclose(each.numpy(), oracle(scores.numpy(), **losses), rtol=1e-9, atol=1e-12)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), expected, rtol=eps + 1e-5, atol=1e-6)
    if dtype != torch.float32:  # to which the loss is rounded in the end
        torch.testing.assert_close(unrounded(narrow, **options).double(), expected, rtol=1e-5, atol=1e-6)
    # Powers are of the slope times a rounded logarithm.
    largest = float(slopes.abs().max()) if slopes.numel() else 0.0
    torch.testing.assert_close(gradient.double(), slopes, rtol=2 * eps + 2e-5, atol=(2 * eps + 2e-5) * largest)


@given(
    batch=batches(on_grid=True),
    dtype=st.sampled_from(DTYPES),
    multiprocessors=st.sampled_from((1, 2, 100)),
    padding=st.sampled_from((0, 1, 4)),
    shift=st.sampled_from((0, 0, 1, 4)),
    reduction=st.sampled_from(REDUCTIONS),
    schedule=st.sampled_from(SCHEDULES),
)
@examples(200)
def test_agrees_with_float64(
    device: Device, batch: tuple[Tensor, dict[str, Any]], dtype: torch.dtype, multiprocessors: int, padding: int,
    shift: int, reduction: str, schedule: Schedule,
) -> None:  # fmt: skip
    device.choose(schedule, multiprocessors)
    check(batch[0], dtype, padding=padding, shift=shift, reduction=reduction, **batch[1])


@negatives_of_every_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "offset", "multiprocessors"),
    [(140, 272, 132, 1), (72, 1100, 1028, 1), (72, 1100, 500, 2), (33, 150, 117, 100)],
)
def test_many_tiles(
    device: Device, negatives: str, dtype: torch.dtype, n_rows: int, n_columns: int, offset: int, multiprocessors: int
) -> None:
    """Several tiles each way, wide ones and narrow ones, with and without positives."""
    device.choose(multiprocessors=multiprocessors)
    scores = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(n_rows), dtype=torch.float64)
    options = {"negatives": negatives, "p": 8.0, "positive_offset": offset, "margin": MARGIN, "caption_ids": None}
    ids = [column // 5 for column in range(n_columns)] if dtype == torch.float16 else None
    check((scores * 4).round() / 8, dtype, image_ids=ids, reduction="none", **options)


@negatives_of_every_kind
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("multiprocessors", [1, 100])
def test_schedules_do_not_show(device: Device, negatives: str, with_ids: bool, multiprocessors: int) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(41, 300, generator=generator)
    ids = torch.randint(0, 20, (300,), generator=generator) if with_ids else None
    made = []
    for schedule in SCHEDULES:
        device.choose(schedule, multiprocessors)
        made += [
            derived(scores, "cuda", negatives=negatives, image_ids=ids, positive_offset=137, reduction=reduction)
            for reduction in ("none", "sum")
        ]
    for index, results in enumerate(made):
        for result, first in zip(results, made[index % 2], strict=True):
            assert torch.equal(result, first)


@pytest.mark.parametrize("kind", ["transposed", "every other column", "one row for all", "one column"])
@negatives_of_every_kind
def test_scores_in_any_order(negatives: str, kind: str) -> None:
    scores = (torch.randn(40, 40, generator=torch.Generator().manual_seed(9)) * 4).round() / 8
    strided = {
        "transposed": scores.T,
        "every other column": scores[:20, ::2],
        "one row for all": scores[:1].expand(9, 40),
        "one column": scores[:1, :1],
    }[kind]
    for made, expected in zip(
        *(derived(strided, backend, negatives=negatives) for backend in ("cuda", "torch")), strict=True
    ):
        torch.testing.assert_close(made, expected, rtol=2e-5, atol=2e-5)


@negatives_of_every_kind
@pytest.mark.parametrize("p", [4.0, 1.5])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column", [5, 200])
def test_what_is_not_finite_beside_columns_without_positives(
    negatives: str, p: float, value: float, column: int
) -> None:
    """Where warps have no mask, too."""
    scores = torch.zeros(24, 256)
    scores[11, column] = value
    for made, expected in zip(
        *(derived(scores, backend, negatives=negatives, p=p, reduction="none") for backend in ("cuda", "torch")),
        strict=True,
    ):
        torch.testing.assert_close(made, expected, equal_nan=True)


class TestKernels(Kernels):
    @pytest.fixture
    def backend(self) -> str:
        return "cuda"


@pytest.mark.parametrize("p", [*ORDERS, 1000.0, 1e6, 1e30])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [(torch.float32, 1e-37, 1e-4), (torch.float32, 1e36, 1e-4), (torch.bfloat16, 1e-30, 0.1), (torch.float16, 1, 0.02)],
)
def test_no_order_overflows_or_underflows(dtype: torch.dtype, scale: float, tolerance: float, p: float) -> None:
    """The loss scales with the scores where the margin is zero, and its gradient does not change."""
    base = torch.rand(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).fill_diagonal_(0)
    base[0, 3] = base[0, 1]  # equals
    scores = (base * scale).to(dtype)
    options = {"margin": 0.0, "negatives": "softmax", "p": p, "reduction": "none"}
    losses, gradient = derived(scores, "cuda", **options)
    expected, slopes = derived(scores.double() / scale, "torch", **options)
    torch.testing.assert_close(losses.double() / scale, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(gradient.double(), slopes, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({0: torch.rand(3)}, "scores must be a 2-D tensor"),
        ({0: torch.rand(3, 4).double()}, "scores must be float32, bfloat16 or float16"),
        ({1: torch.zeros(3).long()}, "image_ids must hold one id for each of 4 columns"),
        ({2: torch.zeros(8).long()[::2]}, "caption_ids must be a contiguous 1-D int64 tensor on the scores' device"),
        ({4: 3}, "unknown negatives 3"),
        ({5: 0.5}, "p must be at least 1"),
        ({6: 3}, "unknown reduction 3"),
        ({7: 2}, "positive_offset is 2 but scores are 3 by 4"),
    ],
)
@pytest.mark.parametrize("name", ["triplet_loss", "triplet_loss_cuda"])
def test_operations_check_what_kernels_rely_on(name: str, changed: dict[int, Any], message: str) -> None:
    arguments: list[Any] = [torch.rand(3, 4), None, None, 0.2, 0, 8.0, 0, 0]
    for index, value in changed.items():
        arguments[index] = value
    with pytest.raises(RuntimeError, match=message):
        getattr(torch.ops.crossret, name)(*arguments)


@pytest.mark.parametrize("name", ["triplet_loss_backward", "triplet_loss_cuda_backward"])
@pytest.mark.parametrize(
    ("grad_loss", "statistics", "message"),
    [
        (torch.ones(3), torch.ones(4, 3), "grad_loss must be float32 of the loss's shape"),
        (torch.ones(()), torch.ones(3, 4), "statistics must be those of the loss"),
    ],
)
def test_gradients_check_what_kernels_rely_on(name: str, grad_loss: Tensor, statistics: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        getattr(torch.ops.crossret, name)(grad_loss, statistics, torch.rand(3, 4), None, None, 0.2, 0, 8.0, 0, 0)
