"""How items are cut up, and what tells devices of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crossret_kernels.gpu.planning import cut, on_device


def test_tables_are_brought_together() -> None:
    """At addresses that divide by 16 bytes, as all others that kernels are compiled for."""
    tables = [np.arange(5), np.zeros((0, 3), np.int32), -np.arange(33).reshape(3, 11)]
    brought = on_device(torch.device("cpu"), *tables)
    assert {table.dtype for table in brought} == {torch.int32}
    assert len({table.untyped_storage().data_ptr() for table in brought}) == 1
    for table, ours in zip(tables, brought, strict=True):
        assert ours.is_contiguous()
        assert np.array_equal(ours.numpy(), table)
        assert (ours.storage_offset() * 4) % 16 == 0


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
