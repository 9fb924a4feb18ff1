"""Attention pooling and its gradients: native kernels beside PyTorch operations, an einsum and reading the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import attention_pool

ITEMS, LONGEST, HEADS, DIM = 256, 100, 12, 1024


def given(n: int, dtype: torch.dtype, ragged: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values, logits and, of ragged items, lengths from half of the longest on."""
    generator = torch.Generator().manual_seed(0)
    values, logits = (torch.randn(n, LONGEST, size, generator=generator).to(dtype) for size in (DIM, HEADS))
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (n,), generator=generator) if ragged else None
    return values.requires_grad_(), logits.requires_grad_(), lengths


def reading(values: Tensor) -> Callable[[], Any]:
    """One pass over the values: the greatest of their bits as integers, which costs less than to bring them there."""
    bits = values.detach().view(torch.int32).flatten()
    return lambda: bits.view(-1, DIM).amax()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
@pytest.mark.parametrize("what", ["forward", "backward"])
@pytest.mark.parametrize("name", ["reading", "cpu", "torch", "reference"])
def test_pooling(benchmark: Any, name: str, what: str, dtype: torch.dtype, ragged: bool, threads: int) -> None:
    values, logits, lengths = given(2 if benchmark.disabled else ITEMS, dtype, ragged)

    def pool(backend: str) -> Tensor:
        return attention_pool(values, logits, lengths, backend=backend)

    own = "cpu" if name == "reading" else name
    pooled, expected = pool(own), pool("torch")
    grad = torch.ones_like(pooled)
    gradients = [torch.autograd.grad(x, (values, logits), grad, retain_graph=True) for x in (pooled, expected)]
    for made, wanted in zip((pooled, *gradients[0]), (expected, *gradients[1]), strict=True):
        torch.testing.assert_close(made, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)
    steps: dict[str, Callable[[], Any]] = {
        "forward": lambda: attention_pool(values.detach(), logits.detach(), lengths, backend=own),
        "backward": lambda: torch.autograd.grad(pooled, (values, logits), grad, retain_graph=True),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    layout = "ragged" if ragged else "whole"
    benchmark.group = f"attention pooling, {what}, {layout}, {str(dtype).removeprefix('torch.')}, {threads} threads"
    benchmark.extra_info.update(bytes=values.nbytes, threads=threads, implementation=name)
    try:
        benchmark.pedantic(reading(values) if name == "reading" else steps[what], rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(before)
