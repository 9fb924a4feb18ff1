"""One call of Sum-Max in Triton: where rows lie, cut up by shapes alone or by lengths, lengths that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import UnsupportedByBackend

pytest.importorskip("triton")

from crossret_kernels.gpu.sides import MOST_ROWS, Side
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.calls import Call
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.triton.call import TritonCall

WORDS = torch.zeros(3, 4, 8)


def call_of(
    regions: Tensor, *integers: Tensor | None, empty_score: float | None = None, pairs: Tensor | None = None
) -> Call:
    arguments: tuple[Any, ...] = (regions, *(*integers, None, None, None)[:3], WORDS, None, None, None, pairs)
    return TritonCall.of((*arguments, empty_score, False, *MaxSimOptions("t2i", "sum", False).codes))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumMax, "UNPLANNED_PRODUCTS", 0)


def test_rows_are_where_strides_say() -> None:
    wide = torch.randn(3, 7, 8)
    packed = torch.tensor([0, 2, 7])
    views = {"even": wide, "cut": wide[:, 1:5, 2:6], "repeated": wide[:1].expand(4, -1, -1), "packed": wide[0]}
    for name, values in views.items():
        call = call_of(values, packed if name == "packed" else None)
        sizes, unit = call.sizes[0], call.unit
        rows = torch.arange(sizes.n_rows)
        items, places = (rows // sizes.slots, rows % sizes.slots) if sizes.slots else (0 * rows, rows)
        begins = (items * sizes.item + places * sizes.row) * unit
        elements = torch.as_strided(values, (wide.numel(),), (1,), storage_offset=0)
        assert torch.equal(elements[begins + values.storage_offset()], values.flatten(0, -2)[:, 0]), name
        assert unit == (1 if name == "cut" else 4), name
        assert sizes.told == (name == "packed")


def test_rows_are_counted_in_32_bits() -> None:
    values = torch.zeros(1, 1, 1).expand(2, MOST_ROWS // 2, 1)
    with pytest.raises(UnsupportedByBackend, match=f"rows of a side, padding included, these are {MOST_ROWS}"):
        call_of(values, None, torch.ones(2, dtype=torch.int64))


def test_shapes_alone_tell_of_small_calls() -> None:
    regions = torch.zeros(300, 8, 8)
    plans = [call_of(regions, None, torch.full((300,), length)).plan(False) for length in (3, 8)]
    assert plans[0]._replace(tables=plans[1].tables) == plans[1]
    assert not plans[0].planned
    assert {len(table) for table in plans[0].tables} == {1}
    # 128 rows of queries have room for 32 items of 4, of which there are 3.
    assert (plans[0].tile_items, plans[0].n_tiles, plans[0].found_slots) == (32, 1, 4)


@pytest.mark.usefixtures("planned")
def test_lengths_tell_of_large_calls() -> None:
    lengths = torch.tensor([3, 8, 1])
    plan = call_of(torch.zeros(3, 8, 8), None, lengths).plan(index=True, gradients=True)
    assert plan.planned
    assert (plan.tile_items, plan.found_slots, plan.pitch) == (0, 0, 12)
    held = [item for item in plan.tables.groups.flatten().tolist() if item >= 0]
    assert held == [1, 0, 2]  # the longest first
    assert plan.tables.starts.tolist() == [0, 4, 8]
    assert plan.tables.holders.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.usefixtures("planned")
def test_what_has_no_lengths_or_lists_pairs_is_not_planned() -> None:
    regions, lengths = torch.zeros(3, 8, 8), torch.tensor([3, 8, 1])
    assert not call_of(regions).planned
    assert not call_of(regions, None, lengths, pairs=torch.zeros(2, 2, dtype=torch.int64)).planned
    call = call_of(regions, None, lengths)
    assert call.planned
    call.contexts = call.contexts._replace(counts=None)  # as while a CUDA graph is captured
    assert not call.planned


def test_kept_rows_come_first() -> None:
    values, mask = torch.arange(2 * 4 * 8.0).view(2, 4, 8), torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]]).bool()
    side: Side = call_of(values, None, None, mask).contexts
    assert side.extents is not None
    assert side.extents.tolist() == [2, 1]
    assert torch.equal(side.features[0, :2], values[0, [1, 3]])
    assert torch.equal(side.features[1, :1], values[1, 2:3])


def test_lengths_lie_as_kernels_read_them() -> None:
    columns = torch.tensor([[0, 1], [0, 2], [0, 3]])
    for lengths in (columns[:, 1], columns.flatten()[1::2], torch.tensor([9, 1, 2, 3])[1:]):
        extents = call_of(torch.zeros(3, 8, 8), None, lengths).contexts.extents
        assert extents is not None
        assert extents.tolist() == [1, 2, 3]
        assert extents.is_contiguous() and extents.data_ptr() % 16 == 0


def test_items_without_rows_leave_nothing_to_search() -> None:
    regions, none = torch.zeros(4, 8, 8), torch.zeros(4, dtype=torch.int64)
    assert call_of(regions, None, none, empty_score=1.0).nothing
    assert call_of(torch.zeros(0, 8), torch.zeros(5, dtype=torch.int64), empty_score=1.0).nothing
    call = call_of(regions, None, torch.tensor([0, 2, 0, 8]), empty_score=1.0)
    assert not call.nothing
    empty = call.empty()
    assert empty is not None
    assert np.array_equal(empty.expand(4, 3).numpy(), np.array([[True], [False], [True], [False]]).repeat(3, 1))


@pytest.mark.parametrize(
    ("regions", "offsets", "lengths", "message"),
    [
        ((2, 4, 8), None, [4, 5], "item 1 has length 5, it must lie in 1..4"),
        ((2, 4, 8), None, [0, 4], "item 0 has length 0"),
        ((8, 8), [0, 3, 9], None, "reach from 0 to 9, but there are 8 rows"),
        ((8, 8), [1, 3, 8], None, "reach from 1 to 8"),
        ((8, 8), [0, 9, 8], None, "item 0 has length 9|item 1 has length -1"),
        ((8, 8), [0, 4, 4, 8], None, "item 1 has length 0"),
    ],
)
def test_no_call_reaches_beyond_the_features(
    regions: tuple[int, ...], offsets: list[int] | None, lengths: list[int] | None, message: str
) -> None:
    """Lengths that nothing else looked at, as inside torch.compile."""
    integers = [None if x is None else torch.tensor(x) for x in (offsets, lengths)]
    with pytest.raises(ValueError, match=message):
        call_of(torch.zeros(regions), *integers)
