"""Stacked cross attention on a training batch: the fused kernels beside the loop, the einsums and the bare product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.cases import SETTINGS, TRAINING_BATCH, loop_scores
from crossret_kernels import scan_scores, triplet_loss

ISAS = torch.ops.crossret.cpu_isas().split()
IMPLEMENTATIONS = ["loop", "torch", *(f"cpu-{isa}" for isa in ISAS)]


def implementation(name: str, patch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    if name == "loop":
        return loop_scores
    backend, _, isa = name.partition("-")
    if isa:
        patch.setenv("CROSSRET_CPU_ISA", isa)

    def score(regions: Tensor, words: Tensor, lengths: Tensor, **options: Any) -> Tensor:
        return scan_scores(regions, words, word_lengths=lengths, backend=backend, **options)

    return score


def record(benchmark: Any, flops: int, pairs: int) -> None:
    """Notes the floating-point operations that no implementation can save, and what a pair costs."""
    benchmark.extra_info.update(flops=flops, pairs=pairs)
    if benchmark.stats:
        benchmark.extra_info["microseconds_per_pair"] = benchmark.stats.stats.median / pairs * 1e6


@pytest.mark.parametrize("name", ["product", *IMPLEMENTATIONS])
@pytest.mark.parametrize("setting", SETTINGS)
def test_forward(benchmark: Any, monkeypatch: pytest.MonkeyPatch, setting: str, name: str) -> None:
    benchmark.group = f"scan_scores forward {setting} float32"
    regions, words, lengths = TRAINING_BATCH.features()
    pairs = TRAINING_BATCH.n_images * TRAINING_BATCH.n_captions
    if name == "product":
        packed = torch.cat([item[:length] for item, length in zip(words, lengths.tolist(), strict=True)])
        benchmark(torch.mm, regions.flatten(0, 1), packed.T)
    else:
        score = implementation(name, monkeypatch)
        expected = loop_scores(regions[:8], words, lengths, **SETTINGS[setting])
        torch.testing.assert_close(score(regions[:8], words, lengths, **SETTINGS[setting]), expected, rtol=0, atol=1e-5)
        benchmark(score, regions, words, lengths, **SETTINGS[setting])
    record(benchmark, TRAINING_BATCH.flops(lengths), pairs)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_training_step(benchmark: Any, monkeypatch: pytest.MonkeyPatch, setting: str, name: str) -> None:
    benchmark.group = f"scan_scores forward + backward of the hardest-negative loss, {setting} float32"
    regions, words, lengths = TRAINING_BATCH.features()
    score = implementation(name, monkeypatch)

    def step() -> None:
        v, e = regions.clone().requires_grad_(), words.clone().requires_grad_()
        triplet_loss(score(v, e, lengths, **SETTINGS[setting])).backward()

    benchmark.pedantic(step, rounds=3 if name in ("loop", "torch") else 9, warmup_rounds=1)
    record(benchmark, 4 * TRAINING_BATCH.flops(lengths), TRAINING_BATCH.n_images * TRAINING_BATCH.n_captions)
