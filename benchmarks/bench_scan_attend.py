"""Attended vectors of listed pairs and their gradients: kernels beside PyTorch operations and a floor of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels import scan_attend

PAIRS, REGIONS, WORDS, DIM = 4096, 36, 13, 1024
# Products of a pair: similarities and attended vectors; backward similarities, attended vectors, the latter's
# gradients with contexts, and what contexts get through either and queries through similarities.
PRODUCTS = {"forward": 2, "backward": 6}


def given(count: int, shared: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Unit features, and all pairs of some items, or of each item one."""
    n = int(count**0.5) if shared else count
    generator = torch.Generator().manual_seed(0)
    regions, words = (
        F.normalize(torch.randn(n, rows, DIM, generator=generator), dim=-1).to(dtype) for rows in (REGIONS, WORDS)
    )
    each = torch.arange(n)
    pairs = torch.cartesian_prod(each, each) if shared else torch.stack([each, each], 1)
    return regions.requires_grad_(), words.requires_grad_(), pairs


def floor(count: int, what: str) -> Callable[[], Any]:
    """The products by torch.mm in float32, and attended vectors written, or their gradients read, once."""
    left, right = torch.randn(64 * REGIONS, DIM), torch.randn(DIM, 64 * WORDS)
    blocks = max(1, count // 4096) * PRODUCTS[what]
    vectors = torch.empty(count, WORDS, DIM)

    def run() -> None:
        for _ in range(blocks):
            left @ right
        if what == "forward":
            torch.zeros_like(vectors)
        else:
            vectors.sum()

    return run


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [True, False], ids=["64 by 64", "pair by pair"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
@pytest.mark.parametrize("what", ["forward", "backward"])
@pytest.mark.parametrize("name", ["floor", "cpu", "torch"])
def test_attending(benchmark: Any, name: str, what: str, dtype: torch.dtype, shared: bool, threads: int) -> None:
    if name == "torch" and what == "backward" and not shared and not benchmark.disabled:
        pytest.skip("adds gradients of the whole batch for every few pairs: half a minute")
    count = 4 if benchmark.disabled else PAIRS
    regions, words, pairs = given(count, shared, dtype)

    def attend(backend: str) -> Any:
        return scan_attend(regions, words, pairs=pairs, backend=backend)

    own = "torch" if name == "torch" else "cpu"
    made = attend(own)
    grads = [torch.ones_like(x) for x in made]
    if benchmark.disabled:
        expected = attend("torch")
        gradients = [torch.autograd.grad(x, (regions, words), grads, retain_graph=True) for x in (made, expected)]
        for one, other in zip((*made, *gradients[0]), (*expected, *gradients[1]), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)
    steps: dict[str, Callable[[], Any]] = {
        "forward": lambda: scan_attend(regions.detach(), words.detach(), pairs=pairs, backend=own),
        "backward": lambda: torch.autograd.grad(made, (regions, words), grads, retain_graph=True),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    layout = "64 by 64" if shared else "pair by pair"
    benchmark.group = f"attended vectors, {what}, {layout}, {str(dtype).removeprefix('torch.')}, {threads} threads"
    benchmark.extra_info.update(flop=count * PRODUCTS[what] * 2 * REGIONS * WORDS * DIM, implementation=name)
    try:
        benchmark.pedantic(floor(count, what) if name == "floor" else steps[what], rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(before)
