"""How items are cut up, and what tells devices of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.gated_attention import torch as gated
from crossret_kernels.gpu import sides
from crossret_kernels.gpu.planning import brought, cut, on_device, parts_of_pairs
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


@given(n_images=st.integers(1, 60), n_captions=st.integers(1, 60), most=st.integers(0, 4000))
def test_parts_of_pairs_are_even(n_images: int, n_captions: int, most: int) -> None:
    seen = np.zeros((n_images, n_captions), int)
    sizes = []
    for images, captions in parts_of_pairs(n_images, n_captions, most):
        seen[slice(*images), slice(*captions)] += 1
        sizes.append((images[1] - images[0], captions[1] - captions[0]))
    assert (seen == 1).all()
    assert max(i * c for i, c in sizes) <= max(1, most)
    for of_side in zip(*sizes, strict=True):
        assert max(of_side) - min(of_side) <= 1


@pytest.mark.parametrize("gradients", [False, True])
def test_a_batch_of_pairs_is_one_run_of_either_side_on_a_gpu(gradients: bool) -> None:
    """At the papers' sizes: what is made of items once is made once, and the host tells the device once."""
    batch, dim, rows = 128, 1024, (36, 20)
    sides = [Ragged.trusted(torch.empty(batch, most, dim, device="meta")) for most in rows]
    options = HeterogeneousOptions(heads=8)
    parameters = [x.to("meta") for x in gated_parameters(*[dim] * 5).flat()]
    with torch.set_grad_enabled(gradients):
        of_layer = layered._Heterogeneous(*sides, None, options, "triton", True).limits([], parameters)
        of_gate = gated._Gated(*sides, None, 0.75, False).limits([], parameters)
    for limits in (of_layer, of_gate):
        assert all(held >= batch * most for held, most in zip(limits.rows, rows, strict=True))
        assert limits.pairs >= (batch**2 if limits is of_layer else batch * 32)  # of a gate, a few blocks in all
