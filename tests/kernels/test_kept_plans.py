"""Kept plans: made once for every set of lengths, bounded in number and memory, those of a captured graph for good."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import kept_plans
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import items_of, tiles_of


def ragged(lengths: list[int], longest: int = 8) -> Ragged:
    return Ragged(torch.zeros(len(lengths), longest, 4), None, torch.tensor(lengths))


def test_plans_are_made_once_for_every_set_of_lengths() -> None:
    plan = tiles_of(ragged([3, 8, 1]), 16, 16)
    assert tiles_of(ragged([3, 8, 1]), 16, 16) is plan
    assert tiles_of(ragged([3, 8, 2]), 16, 16) is not plan
    assert tiles_of(ragged([3, 8, 1]), 32, 16) is not plan
    assert tiles_of(ragged([3, 8, 1], longest=9), 16, 16) is not plan  # rows lie elsewhere
    table = items_of(ragged([3, 8, 1]))
    assert items_of(ragged([3, 8, 1])) is table
    assert (table.first_rows.tolist(), table.lengths.tolist(), table.longest) == ([0, 8, 16], [3, 8, 1], 8)
    packed = Ragged(torch.zeros(12, 4), torch.tensor([0, 3, 11, 12]), None)
    assert items_of(packed).first_rows.tolist() == [0, 3, 11]
    with pytest.raises(ValueError, match="11 rows"):  # the same offsets, but not the same features
        items_of(Ragged(torch.zeros(11, 4), torch.tensor([0, 3, 11, 12]), None))


def test_the_least_used_plans_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    monkeypatch.setattr(kept_plans, "KEPT_PLANS", 2)
    plans = [tiles_of(ragged([length]), 16, 16) for length in (1, 2)]
    assert tiles_of(ragged([1]), 16, 16) is plans[0]
    tiles_of(ragged([3]), 16, 16)
    assert tiles_of(ragged([1]), 16, 16) is plans[0]
    assert tiles_of(ragged([2]), 16, 16) is not plans[1]


def test_plans_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    plan = tiles_of(ragged([1]), 16, 16)
    size = sum(table.nbytes for table in (plan.rows, plan.owners, plan.items, plan.lengths))
    monkeypatch.setattr(kept_plans, "KEPT_BYTES", 2 * size)
    tiles_of(ragged([2]), 16, 16)
    assert tiles_of(ragged([1]), 16, 16) is plan
    tiles_of(ragged([3]), 16, 16)
    assert tiles_of(ragged([1]), 16, 16) is plan
    monkeypatch.setattr(kept_plans, "KEPT_BYTES", 1)
    alone = tiles_of(ragged([4]), 16, 16)
    assert tiles_of(ragged([4]), 16, 16) is alone
    assert tiles_of(ragged([1]), 16, 16) is not plan


def test_plans_of_a_captured_graph_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    monkeypatch.setattr(kept_plans, "KEPT_PLANS", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    plan = tiles_of(ragged([1]), 16, 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    tiles_of(ragged([1]), 16, 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for length in (2, 3, 4):
        tiles_of(ragged([length]), 16, 16)
    assert tiles_of(ragged([1]), 16, 16) is plan
