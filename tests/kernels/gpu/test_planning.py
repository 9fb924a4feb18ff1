"""How items are cut up, and what tells devices of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.gated_attention import torch as gated
from crossret_kernels.gpu import sides
from crossret_kernels.gpu.planning import brought, cut, on_device
from crossret_kernels.gpu.sides import beside
from crossret_kernels.heterogeneous_attention import torch as layered
from crossret_kernels.heterogeneous_attention.options import HeterogeneousOptions
from crossret_kernels.inputs.ragged import Ragged
from tests.kernels.gated_attention.batches import gated_parameters


def check_together(arrays: list[NDArray[Any]], there: list[Tensor]) -> None:
    """At addresses that divide by 16 bytes, as all others that kernels are compiled for."""
    assert len({own.untyped_storage().data_ptr() for own in there}) == 1
    for array, own in zip(arrays, there, strict=True):
        assert own.is_contiguous()
        assert np.array_equal(own.numpy(), array)
        assert (own.storage_offset() * own.element_size()) % 16 == 0


def test_tables_are_brought_together() -> None:
    tables = [np.arange(5), np.zeros((0, 3), np.int32), -np.arange(33).reshape(3, 11)]
    there = on_device(torch.device("cpu"), *tables)
    assert {table.dtype for table in there} == {torch.int32}
    check_together(tables, there)


def test_lengths_and_masks_of_both_sides_are_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, mask = torch.arange(10)[::2], torch.eye(3, 5) > 0
    monkeypatch.setattr(sides, "brought", lambda _device, *arrays: brought(torch.device("cpu"), *arrays))
    there = beside(torch.device("cuda"), lengths, mask)
    assert [own.dtype for own in there if own is not None] == [torch.int64, torch.bool]
    check_together([lengths.numpy(), mask.numpy()], [own for own in there if own is not None])
    on_the_device = torch.ones(2, device="meta")
    assert beside(torch.device("cuda"), None, on_the_device) == [None, on_the_device]
    assert beside(torch.device("cpu"), lengths, None) == [lengths, None]


@pytest.mark.parametrize(
    ("limits", "most_items", "expected"),
    [
        ([([0, 3, 5, 9, 9, 20], 9)], None, [0, 4, 5]),
        ([([0, 3, 5, 9, 9, 20], 9)], 2, [0, 2, 4, 5]),
        ([([0, 3, 5, 9, 9, 20], 9), ([0, 1, 2, 3, 4, 5], 1)], None, [0, 1, 2, 3, 4, 5]),
        ([([0, 30, 60], 1)], None, [0, 1, 2]),
        ([([0], 1)], None, [0]),
    ],
)
def test_groups_hold_as_much_as_the_limits_allow(
    limits: list[tuple[list[int], int]], most_items: int | None, expected: list[int]
) -> None:
    assert cut(*limits, most_items=most_items) == expected


@pytest.mark.parametrize("gradients", [False, True])
def test_a_batch_of_pairs_is_one_run_of_either_side_on_a_gpu(gradients: bool) -> None:
    """At the papers' sizes: what is made of items once is made once, and the host tells the device once."""
    batch, dim, rows = 128, 1024, (36, 20)
    sides = [Ragged.trusted(torch.empty(batch, most, dim, device="meta")) for most in rows]
    options = HeterogeneousOptions(heads=8)
    parameters = [x.to("meta") for x in gated_parameters(*[dim] * 5).flat()]
    with torch.set_grad_enabled(gradients):
        of_layer = layered._Heterogeneous(*sides, None, options, "torch", True).limits([], parameters)
        of_gate = gated._Gated(*sides, None, 0.75, False).limits([], parameters)
    for limits in (of_layer, of_gate):
        assert all(held >= batch * most for held, most in zip(limits.rows, rows, strict=True))
        assert limits.pairs >= 200  # a few dozen blocks of pairs in all
