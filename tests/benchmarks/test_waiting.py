"""The benchmark of waiting threads: a training's rates are found, and the table says how they compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.waiting import POLICIES, measure


def test_policies_take_turns_and_medians_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[dict[str, str]] = []

    def rates(scenes: Path, epochs: int, policy: dict[str, str]) -> list[float]:
        turns.append(policy)
        return [float(len(turns)), 0.0, 1000.0]

    monkeypatch.setattr("benchmarks.waiting.training_rates", rates)
    found = measure(Path(), epochs=4, repeats=2)
    assert turns == [*POLICIES.values()] * 4
    assert [*found["idle"].values()] == [(1 + n + 1 + n + 6) / 2 for n in range(6)]
