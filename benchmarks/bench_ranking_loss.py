"""Ranking losses of square score matrices with their gradients: native kernels beside the chain in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.conftest import THREADS
from crossret_kernels import triplet_loss


def scores(n: int) -> torch.Tensor:
    """(n, n) cosines of which the positives are the greater: a third of the hinges are zero."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(n, n, generator=generator) * 0.1 + 0.15 * torch.eye(n)).requires_grad_()


@pytest.mark.parametrize("n", [128, 1024, pytest.param(4096, marks=pytest.mark.full)])
@pytest.mark.parametrize("negatives", ["hardest", "sum", "softmax"])
@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_loss_and_gradient(benchmark: Any, name: str, negatives: str, n: int) -> None:
    n = n if not benchmark.disabled else 8
    leaf = scores(n)

    def step(backend: str = name) -> tuple[torch.Tensor, torch.Tensor]:
        loss = triplet_loss(leaf, negatives=negatives, backend=backend)
        return loss, *torch.autograd.grad(loss, leaf)

    for made, expected in zip(step(), step("torch"), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    benchmark.group = f"triplet loss, {negatives}, {n} x {n}, {THREADS} threads"
    benchmark.extra_info.update(scores=n * n, threads=THREADS, implementation=name)
    try:
        benchmark.pedantic(step, rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(before)
