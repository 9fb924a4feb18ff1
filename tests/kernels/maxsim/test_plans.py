"""One call of Sum-Max in Triton: where rows lie, cut up by shapes alone or by lengths, lengths that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.triton.call import MaxSimCall

WORDS = torch.zeros(3, 4, 8)


def call_of(
    regions: Tensor, *integers: Tensor | None, empty_score: float | None = None, pairs: Tensor | None = None
) -> MaxSimCall:
    arguments: tuple[Any, ...] = (regions, *(*integers, None, None, None)[:3], WORDS, None, None, None, pairs)
    return MaxSimCall.of((*arguments, empty_score, False, *MaxSimOptions().codes))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumMax, "UNPLANNED_PRODUCTS", 0)


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


def test_items_without_rows_leave_nothing_to_search() -> None:
    regions, none = torch.zeros(4, 8, 8), torch.zeros(4, dtype=torch.int64)
    assert call_of(regions, None, none, empty_score=1.0).is_empty
    assert call_of(torch.zeros(0, 8), torch.zeros(5, dtype=torch.int64), empty_score=1.0).is_empty
    call = call_of(regions, None, torch.tensor([0, 2, 0, 8]), empty_score=1.0)
    assert not call.is_empty
    empty = call.empty()
    assert empty is not None
    assert np.array_equal(empty.expand(4, 3).numpy(), np.array([[True], [False], [True], [False]]).repeat(3, 1))
