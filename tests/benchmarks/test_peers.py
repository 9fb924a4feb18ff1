"""Benchmarks of other late-interaction packages: what is measured, by a package made up here, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import peer_report, peers
from benchmarks.peers import RERANKING, TEXTS, TRAINING, Peer, exact, measure


def made_up(patches: list[str]) -> Peer:
    """As it is, its scores are off by one; patched, exact."""
    compat = SimpleNamespace(patch=lambda: patches.append("in"), unpatch=lambda: patches.append("out"))

    def score() -> peers.Score:
        return lambda own: exact(own) + (patches[-1:] != ["in"])

    return Peer("torch", "torch", compat, score, score, (64, 32, TEXTS))


@pytest.mark.parametrize("task", [TRAINING, RERANKING])
def test_measures_both_and_their_distance_from_float64(task: str) -> None:
    patches: list[str] = []
    found = measure(made_up(patches), task, torch.float32, quick=True)
    assert found.theirs.scores == pytest.approx(1)
    assert found.ours.scores == 0
    assert patches == ["in", "out"] * 2  # once compared, once timed
    assert found.version == torch.__version__
    gradients = (found.theirs.gradients, found.ours.gradients)
    assert gradients == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6)) if task == TRAINING else (None, None)


def run(package: str) -> dict[str, Any]:
    figures = {"milliseconds": 1234.5, "mebibytes": 20.0, "scores": 0.01, "gradients": 0.09}
    own = {"package": package, "version": "1.6", "task": TRAINING, "shape": "4 × 2", "dtype": "bfloat16"}
    machine = {"cpu": "a processor", "threads": 2, "torch": "2.13"}
    ours = {**figures, "milliseconds": 200.0}
    return {"machine": machine, "measurements": [{**own, "theirs": figures, "ours": ours}]}


def test_records_every_run_in_the_readme(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"before\n{peer_report.BEGIN}\nold\n{peer_report.END}\nafter\n")
    for name in "ab":
        (tmp_path / name).write_text(json.dumps(run(f"package {name}")))
    kept, readme = peer_report.record(
        {"date": "2026-11-23", **peer_report.merged([tmp_path / "a", tmp_path / "b"])}, tmp_path
    )
    text = readme.read_text()
    assert "| package a 1.6, training step | 4 × 2 | bfloat16 | 1,234 → **200** | 20 → **20** |" in text
    assert "package b 1.6" in text and "9.00% → **9.00%**" in text and "old" not in text
    assert len(json.loads(kept.read_text())["measurements"]) == 2
    (tmp_path / "c").write_text("{}")
    with pytest.raises(ValueError, match=r"c: no run of benchmarks\.peers"):
        peer_report.merged([tmp_path / "c"])
