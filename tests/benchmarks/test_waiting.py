"""The benchmark of waiting threads: a training's rates are found, and the table says how they compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.waiting import LOADS, POLICIES, markdown, measure, training_rates
from crossret.machine import describe_machine


def test_rates_are_those_of_a_training(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for split in ("train", "dev"):
        np.save(tmp_path / f"{split}_ims.npy", random.standard_normal((4, 3, 6), np.float32))
        (tmp_path / f"{split}_caps.txt").write_text("a dog\n" * 20)
    (rate,) = training_rates(tmp_path, 2, POLICIES["passive"])  # the first epoch's is left out
    assert rate > 0


def test_policies_take_turns_and_medians_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[dict[str, str]] = []

    def rates(scenes: Path, epochs: int, policy: dict[str, str]) -> list[float]:
        turns.append(policy)
        return [float(len(turns)), 0.0, 1000.0]

    monkeypatch.setattr("benchmarks.waiting.training_rates", rates)
    found = measure(Path(), epochs=4, repeats=2)
    assert turns == [*POLICIES.values()] * 4
    assert [*found["idle"].values()] == [(1 + n + 1 + n + 6) / 2 for n in range(6)]


def test_the_table_has_ratios_to_the_first_policy() -> None:
    rates = {load: {policy: 100.0 * (1 + place) for place, policy in enumerate(POLICIES)} for load in LOADS}
    text = markdown({"machine": describe_machine(), "captions_per_second": rates})
    assert "| libgomp's own | 100 (1.00 ×) | 100 (1.00 ×) |" in text
    assert "| passive | 600 (6.00 ×) | 600 (6.00 ×) |" in text
