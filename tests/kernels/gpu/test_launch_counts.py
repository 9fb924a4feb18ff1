"""What calls in Triton ask of a device, counted without one: launches, and memory of the allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from crossret_kernels import scan_scores, triplet_loss
from crossret_kernels.backends import INTERPRETED

pytest.importorskip("triton")

from benchmarks.gpu.host import DEVICE, counted, nothing_launched

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")

SHAPES = (128, 36, 64), (128, 20, 64)
FORWARD = {"kernels": 4, "products": 1}  # pack, Gram matrices, attend, pool
BACKWARD = {"kernels": 4, "products": 2}  # relevances, Gram matrices, similarities, store
LOSS = {"kernels": 3}  # hinges, losses with their sum, gradient


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with nothing_launched():
        yield


def launches(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in DEVICE if counts[kind]}


def both(*parts: dict[str, int]) -> dict[str, int]:
    return dict(sum(map(Counter, parts), Counter[str]()))


def counts_of(*wanted: bool, loss: bool = False, **options: Any) -> Counter[str]:
    """Of scores of 128 × 128 and, where it is asked for, of their loss and of the gradients that are wanted."""
    sides = [torch.zeros(shape, dtype=torch.bfloat16) for shape in SHAPES]
    leaves = [side.requires_grad_() for side, own in zip(sides, wanted, strict=False) if own]
    of_result = torch.ones(()) if loss else torch.ones(128, 128)

    def step() -> None:
        result = scan_scores(*sides, **options, backend="triton")
        result = triplet_loss(result, backend="triton") if loss else result
        if leaves:
            torch.autograd.grad(result, leaves, of_result)

    return counted(step)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_forward_pass_takes_five_launches(direction: str, normalize: bool) -> None:
    counts = counts_of(direction=direction, normalize=normalize)
    assert launches(counts) == FORWARD
    assert counts["allocations"] <= 3  # scores, a workspace, and nothing in place of what is kept


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_a_step_takes_fourteen_launches(direction: str) -> None:
    counts = counts_of(True, True, loss=True, direction=direction)
    assert launches(counts) == both(FORWARD, LOSS, BACKWARD)
    assert sum(launches(counts).values()) == 14
    assert counts["allocations"] <= 11


def test_gradients_of_one_side_take_fewer() -> None:
    assert launches(counts_of(True, False)) == both(FORWARD, BACKWARD, {"products": -1}, {"products": 0})
    assert launches(counts_of(False, True)) == both(FORWARD, {"kernels": 3, "products": 1})


@pytest.mark.parametrize(
    ("told", "copies"),
    [({}, 0), ({"word_lengths": torch.full((128,), 20)}, 1), ({"word_mask": torch.ones(128, 20, dtype=torch.bool)}, 2)],
)
def test_lengths_on_the_host_are_copied_once_a_step(told: dict[str, Any], copies: int) -> None:
    """A mask twice: it tells where rows lie, and where their gradients."""
    counts = counts_of(True, True, **told)
    assert counts["copies"] == copies
    assert launches(counts - Counter(copies=copies)) == both(FORWARD, BACKWARD)


def test_losses_of_many_rows_are_summed_by_an_operation() -> None:
    scores = torch.zeros(300, 300, requires_grad=True)
    one = torch.ones(())
    counts = counted(lambda: torch.autograd.grad(triplet_loss(scores, backend="triton"), scores, one))
    assert launches(counts) == both(LOSS, {"operations": 1})
