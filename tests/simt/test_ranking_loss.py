"""The ranking losses' CUDA kernels, run on the CPU, against loops in float64 and the chain: losses and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import triplet_loss
from tests.kernels.strategies import examples
from tests.kernels.test_triplet_loss import oracle
from tests.simt.launches import DTYPES, NEGATIVES, SCHEDULES, Device

ORDERS = (1.0, 1.5, 2.0, 8.0, 64.0)
MARGIN = 0.25

negatives_of_every_kind = pytest.mark.parametrize("negatives", NEGATIVES)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, dict[str, Any]]:
    """Scores in eighths, of which hinges are exact in every dtype and many tie, and options."""
    n_rows = draw(st.integers(1, 9) | st.sampled_from((1, 17, 40)))
    before, behind = draw(st.sampled_from((0, 0, 1, 5))), draw(st.sampled_from((0, 0, 2, 130)))
    n_columns = before + n_rows + behind
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = (torch.randn(n_rows, n_columns, generator=generator, dtype=torch.float64) * 4).round() / 8
    few = draw(st.sampled_from((0, 2, n_rows)))
    ids = st.none() | st.lists(st.integers(-1, few), min_size=n_columns, max_size=n_columns)
    return scores, {
        "margin": draw(st.sampled_from((0.0, 0.25, 1.0))),
        "negatives": draw(st.sampled_from(NEGATIVES)),
        "p": draw(st.sampled_from(ORDERS)),
        "image_ids": draw(ids),
        "caption_ids": draw(ids),
        "positive_offset": before,
    }


def padded(scores: Tensor, padding: int, shift: int) -> Tensor:
    """The same scores, rows `padding` elements apart and `shift` elements into their memory; NaN lies between."""
    n_rows, n_columns = scores.shape
    stride = n_columns + padding
    memory = torch.full((n_rows * stride + shift,), float("nan"), dtype=scores.dtype)
    spread = memory[shift:].view(n_rows, stride)[:, :n_columns]
    spread.copy_(scores)
    return spread


def chain(scores: Tensor, grads: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    losses = triplet_loss(leaf, reduction="none", backend="torch", **options)
    return losses.detach(), torch.autograd.grad(losses, leaf, grads)[0]


def check(device: Device, scores: Tensor, dtype: torch.dtype, **given_options: Any) -> None:
    """Losses, their sum or mean, and the gradient, against float64."""
    launch = {
        name: given_options.pop(name)
        for name in ("multiprocessors", "mean", "out_padding", "schedule")
        if name in given_options
    }
    padding, shift = given_options.pop("padding", 0), given_options.pop("shift", 0)
    grads = torch.linspace(1, 2, 2 * len(scores))[::2]
    losses, loss, gradient = device.ranking_loss(
        padded(scores.to(dtype), padding, shift), grads=grads, **launch, **given_options
    )
    share = len(scores) if launch.get("mean") else 1
    expected, slopes = chain(scores, grads.double() / share, **given_options)
    np.testing.assert_allclose(expected.numpy(), oracle(scores.numpy(), **given_options), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.double(), expected.sum() / share, rtol=1e-5, atol=1e-6)
    # Powers are of the slope times a rounded logarithm.
    rounding = torch.finfo(dtype).eps + 2e-5
    torch.testing.assert_close(gradient.double(), slopes, rtol=rounding, atol=rounding * float(slopes.abs().max()))


@given(
    batch=batches(),
    dtype=st.sampled_from(DTYPES),
    multiprocessors=st.sampled_from((1, 2, 100)),
    padding=st.sampled_from((0, 1, 4)),
    shift=st.sampled_from((0, 0, 1, 4)),
    out_padding=st.sampled_from((0, 1, 3)),
    mean=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
)
@examples(200)
def test_agrees_with_float64(
    device: Device, batch: tuple[Tensor, dict[str, Any]], dtype: torch.dtype, **launch: Any
) -> None:
    check(device, batch[0], dtype, **launch, **batch[1])


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
    scores = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(n_rows), dtype=torch.float64)
    options = {"negatives": negatives, "p": 8.0, "positive_offset": offset, "margin": MARGIN}
    ids = {"image_ids": [column // 5 for column in range(n_columns)], "caption_ids": None}
    without = {"image_ids": None, "caption_ids": None}
    check(
        device, (scores * 4).round() / 8, dtype, multiprocessors=multiprocessors, **options,
        **(ids if dtype == torch.float16 else without),
    )  # fmt: skip


@negatives_of_every_kind
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("multiprocessors", [1, 100])
def test_schedules_do_not_show(device: Device, negatives: str, with_ids: bool, multiprocessors: int) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(41, 300, generator=generator)
    ids = torch.randint(0, 20, (300,), generator=generator).tolist() if with_ids else None
    made = [
        device.ranking_loss(
            scores, margin=0.2, negatives=negatives, p=8.0, image_ids=ids, positive_offset=137, schedule=schedule,
            multiprocessors=multiprocessors,
        )
        for schedule in SCHEDULES
    ]  # fmt: skip
    for results in made[1:]:
        for result, first in zip(results, made[0], strict=True):
            assert torch.equal(result, first)


@negatives_of_every_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize(
    ("scores", "margin", "image_ids"),
    [
        (torch.eye(4) * 10, 0.2, None),
        (torch.zeros(4, 4), 0.0, None),
        (torch.ones(4, 4), 0.2, [3, 3, 3, 3]),
        (torch.ones(1, 1), 0.2, None),
    ],
    ids=["negative hinges", "hinges of exactly zero", "one image", "one pair"],
)
def test_zero_losses_have_zero_gradients(
    device: Device, negatives: str, dtype: torch.dtype, p: float, scores: Tensor, margin: float, image_ids: Any
) -> None:
    losses, loss, gradient = device.ranking_loss(
        scores.to(dtype), margin=margin, negatives=negatives, p=p, image_ids=image_ids,
        grads=torch.full((len(scores),), float("inf")),
    )  # fmt: skip
    for result in (losses, loss, gradient):
        assert torch.equal(result, torch.zeros_like(result))


@pytest.mark.parametrize("image_ids", [None, [0, 1, 2, 0, 1]])
@pytest.mark.parametrize("place", [(0, 1), (2, 2), (0, 3), (4, 0)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@negatives_of_every_kind
def test_nan_is_where_hinges_meet_it(
    device: Device, negatives: str, value: float, place: tuple[int, int], image_ids: list[int] | None
) -> None:
    """Losses of rows and columns; gradients by "softmax", of hinges above zero. (0, 3) are no negatives by the ids."""
    scores = torch.zeros(5, 5)
    scores[1, 4] = -1.0
    scores[place] = value
    options = {"negatives": negatives, "p": 8.0, "margin": 0.2, "image_ids": image_ids}
    expected, slopes = chain(scores, torch.ones(5), **options)
    losses, _, gradient = device.ranking_loss(scores, **options)
    torch.testing.assert_close(losses, expected, equal_nan=True)
    torch.testing.assert_close(gradient, slopes, equal_nan=True)


@pytest.mark.parametrize("place", [(1, 0), (1, 3), (1, 4), (3, 6)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@negatives_of_every_kind
def test_nan_beside_the_positives(device: Device, negatives: str, value: float, place: tuple[int, int]) -> None:
    """In columns without a positive and with one: (1, 3) is one itself."""
    scores = torch.zeros(4, 7)
    scores[0, 1] = -1.0
    scores[place] = value
    options = {"negatives": negatives, "p": 8.0, "margin": 0.2, "positive_offset": 2}
    expected, slopes = chain(scores, torch.ones(4), **options)
    losses, _, gradient = device.ranking_loss(scores, **options)
    torch.testing.assert_close(losses, expected, equal_nan=True)
    torch.testing.assert_close(gradient, slopes, equal_nan=True)


@pytest.mark.parametrize("p", [*ORDERS, 1000.0, 1e6, 1e30])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [(torch.float32, 1e-37, 1e-4), (torch.float32, 1e36, 1e-4), (torch.bfloat16, 1e-30, 0.1), (torch.float16, 1, 0.02)],
)
def test_no_order_overflows_or_underflows(
    device: Device, dtype: torch.dtype, scale: float, tolerance: float, p: float
) -> None:
    """The loss scales with the scores where the margin is zero, and its gradient does not change."""
    base = torch.rand(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).fill_diagonal_(0)
    base[0, 3] = base[0, 1]  # equals
    scores = (base * scale).to(dtype)
    losses, _, gradient = device.ranking_loss(scores, margin=0.0, negatives="softmax", p=p)
    expected, slopes = chain(scores.double() / scale, torch.ones(5).double(), margin=0.0, negatives="softmax", p=p)
    torch.testing.assert_close(losses.double() / scale, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(gradient.double(), slopes, rtol=tolerance, atol=tolerance)


@negatives_of_every_kind
def test_loses_no_more_than_twice_what_the_chain_does(device: Device, negatives: str) -> None:
    scores = torch.randn(150, 150, generator=torch.Generator().manual_seed(5), dtype=torch.float64).float()
    options = {"margin": 0.2, "negatives": negatives, "p": 8.0}
    exact, eager = (chain(values, torch.ones(150).to(values), **options) for values in (scores.double(), scores))
    losses, _, gradient = device.ranking_loss(scores, **options)
    for made, theirs, right, times in ((losses, eager[0], exact[0], 2), (gradient, eager[1], exact[1], 3)):
        eps = torch.finfo(torch.float32).eps * float(right.abs().max())
        assert (made - right).abs().max() <= times * (theirs - right).abs().max() + eps
