"""`attention_pool` by backend "triton" against its formula: layouts, tiles, gradients, NaN, opcheck, orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import attention_pool_weights
from crossret_kernels.gpu.tuning import AttentionPool
from tests.every_two import every_two
from tests.interpreted.programs import ORDERS, programs_share_nothing
from tests.kernels.pooling import check_gradients, laid_out, randn, results_of

LENGTHS = [5, 1, 40]


@pytest.mark.parametrize(
    ("order", "layout", "sizes", "dtype"),
    every_two(
        ORDERS,
        ["padded", "packed", "list", "mask"],
        [(6, 2), (256, 12), (130, 33)],
        [torch.float32, torch.float16],
    ),
    indirect=["order"],
    ids=str,
)
def test_gradients_and_results_are_those_of_the_formula(
    layout: str, sizes: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several tiles of heads, and an item's rows by several programs."""
    dim, heads = sizes
    monkeypatch.setattr(AttentionPool, "HEADS", 16)
    monkeypatch.setattr(AttentionPool, "PROGRAMS", 12)
    values, logits = randn(3, 41, dim), 3 * randn(3, 41, heads, seed=1)
    with programs_share_nothing():
        check_gradients(values, logits, LENGTHS, dtype, layout, "triton", (True, True), 0)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_items(layout: str) -> None:
    values, logits = (torch.zeros(0, dim).requires_grad_() for dim in (6, 2))
    arguments = ((values, torch.tensor([0])), logits) if layout == "packed" else (values[None][:0], logits[None][:0])
    pooled, weights = attention_pool_weights(*arguments, backend="triton")
    assert (pooled.shape, weights.shape) == ((0, 2, 6), (0, 2, 1))
    for gradient in torch.autograd.grad(pooled.sum() + weights.sum(), (values, logits)):
        assert gradient.shape[0] == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
def test_nan_stays_in_its_item_and_padding_is_never_read() -> None:
    values, logits = randn(3, 41, 9).float(), randn(3, 41, 3, seed=1).float()
    clean = results_of(values, logits, LENGTHS, "triton")
    for side in (values, logits):
        for item, length in zip(side, LENGTHS, strict=True):
            item[length:] = torch.nan
    for ours, theirs in zip(results_of(values, logits, LENGTHS, "triton"), clean, strict=True):
        assert torch.equal(ours, theirs)
    for place in range(2):
        sides = [values.clone(), logits.clone()]
        sides[place][2, 1, 0] = torch.nan
        outputs = results_of(*sides, LENGTHS, "triton")
        assert outputs[0][2].isnan().any()
        for ours, theirs in zip(outputs, clean, strict=True):
            assert torch.equal(ours[:2], theirs[:2])


def test_rows_that_begin_anywhere() -> None:
    """In memory: of a slice, and of one whose first row is at no multiple of 16 bytes."""
    values, logits = randn(2, 7, 13).float(), randn(2, 7, 6, seed=1).float()
    for columns in (slice(0, 8), slice(1, 9)):
        own = values[..., columns], logits[..., 1:4]
        results = [results_of(*own, [7, 3], "triton"), results_of(*(x.contiguous() for x in own), [7, 3], "triton")]
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs)


def operation_arguments(layout: str) -> tuple[Tensor | None, ...]:
    values, logits = randn(3, 41, 6).float(), randn(3, 41, 2, seed=1).float()
    given: Any = laid_out(values, logits, LENGTHS, "packed" if layout == "packed" else "padded")
    if layout == "packed":
        (rows, offsets), packed = given
        return rows, offsets, None, None, packed
    mask = torch.arange(3 * 41).view(3, 41) % 3 == 0 if layout == "mask" else None
    return values, None, torch.tensor(LENGTHS) if mask is None else None, mask, logits


@pytest.mark.parametrize("layout", ["padded", "packed", "mask"])
@pytest.mark.parametrize("width", [0, 41])
def test_opcheck(layout: str, width: int) -> None:
    arguments = operation_arguments(layout)
    grads = randn(3, 2, 6, seed=2).float(), randn(3, 2, width, seed=3).float()
    operations = torch.ops.crossret
    torch.library.opcheck(operations.attention_pool_triton_backward.default, (*grads, *arguments, width, True, False))
    for side in (arguments[0], arguments[4]):
        assert side is not None
        side.requires_grad_()
    torch.library.opcheck(operations.attention_pool_triton.default, (*arguments, width))
