"""Benchmarks of other late-interaction packages: what is measured, by a package made up here, and its table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks import peers
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
