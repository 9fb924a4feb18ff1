"""Kept plans: made once for every set of lengths, bounded in memory, safe to share among streams and threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from crossret_kernels.gpu import kept_plans

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Plan:
    """Of a number."""

    number: int
    tables: tuple[torch.Tensor, ...]


def plan_of(number: int) -> Plan:
    def make() -> Plan:
        return Plan(number, kept_plans.on_device(CPU, np.full(32, number), np.zeros(32)))

    return kept_plans.kept_plan(Plan, (number,), CPU, make)


def test_plans_are_made_once() -> None:
    plan = plan_of(1)
    assert plan_of(1) is plan
    assert plan_of(2) is not plan


def test_the_least_used_plans_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    monkeypatch.setattr(kept_plans, "KEPT_PLANS", 2)
    plans = [plan_of(length) for length in (1, 2)]
    assert plan_of(1) is plans[0]
    plan_of(3)
    assert plan_of(1) is plans[0]
    assert plan_of(2) is not plans[1]


def test_plans_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    plan = plan_of(1)
    size = sum(table.nbytes for table in plan.tables)
    monkeypatch.setattr(kept_plans, "KEPT_BYTES", 2 * size)
    plan_of(2)
    assert plan_of(1) is plan
    plan_of(3)
    assert plan_of(1) is plan
    monkeypatch.setattr(kept_plans, "KEPT_BYTES", 1)
    alone = plan_of(4)
    assert plan_of(4) is alone
    assert plan_of(1) is not plan


class Streams:
    """A pretended device: the stream that calls are made on, whether it is captured, and who waits and reads what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = "first"
        self.captured = False
        self.readers: list[tuple[int, str]] = []
        self.waited: list[tuple[str, str]] = []
        monkeypatch.setattr(kept_plans, "_stream", lambda device: self.current)
        monkeypatch.setattr(kept_plans, "_mark", lambda stream: f"brought on {stream}")
        monkeypatch.setattr(kept_plans, "_wait", lambda stream, ready: self.waited.append((stream, ready)))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captured)
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda table, stream: self.readers.append((table.data_ptr(), stream))
        )


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr(kept_plans, "_kept", kept_plans._Kept())
    return Streams(monkeypatch)


def test_plans_of_a_captured_graph_stay(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "KEPT_PLANS", 1)
    plan = plan_of(1)
    streams.current, streams.captured = "capturing", True
    plan_of(1)
    streams.captured = False
    for length in (2, 3, 4):
        plan_of(length)
    assert plan_of(1) is plan
    assert not streams.readers  # of memory that is never given back
    assert not streams.waited  # a captured wait for what was not captured is an error


def test_a_capture_makes_no_plan(streams: Streams) -> None:
    """It would copy from host memory that is gone when the graph is replayed."""
    streams.captured = True
    with pytest.raises(RuntimeError, match=r"these lengths have no plan yet, .* captured: score features"):
        plan_of(1)


def test_memory_of_a_plan_waits_for_every_other_stream_that_reads_it(streams: Streams) -> None:
    plan = plan_of(1)
    plan_of(1)
    assert not streams.readers
    for streams.current in ("second", "third", "second", "first"):
        assert plan_of(1) is plan
    tables = [table.data_ptr() for table in plan.tables]
    assert sorted(streams.readers) == sorted((table, name) for table in tables for name in ("second", "third"))


def test_other_streams_wait_once_until_the_tables_are_there(streams: Streams) -> None:
    plan_of(1)
    for streams.current in ("second", "first", "third", "second"):
        plan_of(1)
    assert streams.waited == [("second", "brought on first"), ("third", "brought on first")]


def test_tables_are_brought_together() -> None:
    """At addresses that divide by 16 bytes, as all others that kernels are compiled for."""
    tables = [np.arange(5), np.zeros((0, 3), np.int32), -np.arange(33).reshape(3, 11)]
    brought = kept_plans.on_device(torch.device("cpu"), *tables)
    assert {table.dtype for table in brought} == {torch.int32}
    assert len({table.untyped_storage().data_ptr() for table in brought}) == 1
    for table, ours in zip(tables, brought, strict=True):
        assert ours.is_contiguous()
        assert np.array_equal(ours.numpy(), table)
        assert (ours.storage_offset() * 4) % 16 == 0


class Interrupting:
    """A part of a key at which threads take turns: between looking a plan up and what follows, too."""

    def __hash__(self) -> int:
        time.sleep(0)
        return 0


def test_threads_share_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kept_plans._Kept()
    monkeypatch.setattr(kept_plans, "_kept", kept)
    monkeypatch.setattr(kept_plans, "KEPT_PLANS", 3)
    option = Interrupting()

    def calls(seed: int) -> None:
        for index in np.random.default_rng(seed).integers(5, size=200):
            plan = kept_plans.kept_plan(Plan, (option, index), CPU, lambda of=index: Plan(of, (torch.tensor(of),)))
            assert plan.number == index

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))
    assert len(kept._latest) == 3
    assert kept._bytes == sum(entry.nbytes for entry in kept._latest.values())
