"""Self-attention of a layer's projected rows by the native kernel against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels.heterogeneous_attention.kernels import self_attention
from tests.kernels.strategies import examples
from tests.kernels.threads import by_any_threads
from tests.kernels.tolerance import EPS, ISAS, cpu_isa


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_mask(n: int, rows: int, seed: int = 0) -> Tensor:
    """(n, rows), at least one row of each."""
    mask = randn(n, rows, seed=seed) > -0.5
    mask[:, seed % rows] = True
    return mask


def by_hand(projected: Tensor, mask: Tensor, heads: int, scale: float) -> Tensor:
    q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    logits = (scale * (q @ k.mT)).masked_fill(~mask[:, None, None, :], -torch.inf)
    return (torch.softmax(logits, -1) @ v).transpose(1, 2).flatten(-2)


def results(function: object, projected: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    """What is made, and the gradient of a weighted sum."""
    leaf = projected.clone().requires_grad_()
    made = function(leaf, *others)  # type: ignore[operator]
    return made.detach(), torch.autograd.grad(made, leaf, randn(*made.shape, seed=5).to(made.dtype))[0]


def check(n: int, rows: int, heads: int, dim: int, scale: float, seed: int = 0) -> None:
    projected, mask = randn(n, rows, 3 * heads * dim, seed=seed), make_mask(n, rows, seed)
    exact = results(by_hand, projected.double(), mask, heads, scale)
    eager = results(by_hand, projected, mask, heads, scale)
    for ours, theirs, true in zip(results(self_attention, projected, mask, heads, scale), eager, exact, strict=True):
        loss = float((theirs - true).abs().max())
        assert float((ours - true).abs().max()) <= 3 * loss + 32 * EPS * max(float(true.abs().max()), 1.0)


@pytest.mark.parametrize("isa", ISAS)
@examples(30)
@given(
    n=st.integers(1, 3), rows=st.sampled_from((1, 2, 7, 16, 33, 52)), heads=st.sampled_from((1, 2, 4)),
    dim=st.sampled_from((1, 3, 16, 40)), scale=st.sampled_from((0.0, 0.3, 5.0)), seed=st.integers(0, 9),
)  # fmt: skip
def test_follows_the_formula(isa: str, n: int, rows: int, heads: int, dim: int, scale: float, seed: int) -> None:
    with cpu_isa(isa):
        check(n, rows, heads, dim, scale, seed)


@pytest.mark.parametrize("isa", ISAS)
def test_long_items_and_wide_heads(isa: str) -> None:
    with cpu_isa(isa):
        check(2, 130, 2, 150, 0.1)


def test_threads_neighbours_and_rows_that_are_masked_do_not_show() -> None:
    projected, mask = randn(20, 40, 3 * 64), make_mask(20, 40)
    clean, _ = by_any_threads(lambda: results(self_attention, projected, mask, 4, 0.3))
    projected[3] = torch.nan
    projected[5, ~mask[5], :64] = torch.nan  # queries of rows that nobody looks at
    there = mask.clone()
    there[3] = False
    made_of_nan = self_attention(projected, mask, 4, 0.3)
    assert torch.equal(made_of_nan[there], clean[there])
    assert made_of_nan[3].isnan().all()
    assert self_attention(projected[:0], mask[:0], 4, 0.3).shape == (0, 40, 64)


def test_opcheck() -> None:
    projected, mask = randn(2, 5, 12), make_mask(2, 5)
    torch.library.opcheck(torch.ops.crossret.self_attention.default, (projected.requires_grad_(), mask, 2, 0.5))
    grads = randn(2, 5, 4), projected.detach(), mask, 2, 0.5
    torch.library.opcheck(torch.ops.crossret.self_attention_backward.default, grads)


@pytest.mark.parametrize(
    ("projected", "mask", "message"),
    [
        (randn(2, 5, 12).double(), make_mask(2, 5), "self-attention takes float32"),
        (randn(2, 5, 12), make_mask(2, 4), "self-attention takes float32"),
        (randn(2, 5, 12), make_mask(2, 5).to(torch.int8), "self-attention takes float32"),
        (randn(2, 5, 9), make_mask(2, 5), "heads must divide the width"),
    ],
)
def test_direct_calls_with_bad_operands_raise(projected: Tensor, mask: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.self_attention(projected, mask, 2, 0.5)
