"""Sides of a call as Triton kernels read them."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import UnsupportedByBackend
from crossret_kernels.triton_launch import MOST_ROWS, Side


def test_rows_are_where_strides_say() -> None:
    wide = torch.randn(3, 7, 8)
    views = {"even": wide, "cut": wide[:, 1:5, 2:6], "repeated": wide[:1].expand(4, -1, -1)}
    for name, values in views.items():
        side = Side.of(values, None, None)
        rows = torch.arange(side.n_rows)
        begins = rows // side.per_item * side.item_stride + rows % side.per_item * side.row_stride
        elements = torch.as_strided(side.features, (wide.numel(),), (1,), storage_offset=0)
        found = elements[begins + side.features.storage_offset()]
        assert torch.equal(found, values.flatten(0, 1)[:, 0]), name
        assert (side.per_item == 1) == (name == "even"), name  # where rows lie evenly none is divided for


def test_rows_are_counted_in_32_bits() -> None:
    values = torch.zeros(1, 1).expand(MOST_ROWS, 1)
    with pytest.raises(UnsupportedByBackend, match=f"rows of a side, padding included, these are {MOST_ROWS}"):
        Side.of(values, torch.tensor([0, MOST_ROWS]), None)
