"""Linear layers and their gradients: native kernels beside PyTorch's and the bare product by torch.mm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels.dense.op import Products

# Rows, in and out: keys of a batch's regions, rows of a few pairs of three projections, narrow rows.
SHAPES = ((6272, 512, 512), (1664, 512, 1536), (5000, 128, 128))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bfloat16", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("what", ["forward", "backward"])
@pytest.mark.parametrize("name", ["product", "cpu", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(
    benchmark: Any, shape: tuple[int, int, int], name: str, what: str, bfloat16: bool, threads: int
) -> None:
    count, n_in, n_out = (9, *shape[1:]) if benchmark.disabled else shape
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, n_in, generator=generator).div(n_in**0.25) for n in (count, n_out))
    leaves = [x.requires_grad_() for x in (rows, weight, torch.randn(n_out, generator=generator))]
    halves = [x.bfloat16() if bfloat16 else x for x in leaves]  # inputs of PyTorch

    def layer(own: str, tensors: list[Tensor]) -> Tensor:
        return Products(own == "cpu", bfloat16).linear(*tensors)

    own = "torch" if name == "product" else name
    given = leaves if own == "cpu" else halves
    made = layer(own, given)
    torch.testing.assert_close(made.float(), layer("torch", leaves), rtol=2e-2, atol=5e-2 if bfloat16 else 1e-4)
    grad = torch.ones_like(made)
    plain = [x.detach() for x in given]
    products: dict[str, Callable[[], Any]] = {
        "forward": lambda: plain[0] @ plain[1].T,
        "backward": lambda: (grad @ plain[1], grad.T @ plain[0]),
    }
    steps: dict[str, Callable[[], Any]] = {
        "forward": lambda: layer(own, plain),
        "backward": lambda: torch.autograd.grad(made, given, grad, retain_graph=True),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    dtype = "bfloat16" if bfloat16 else "float32"
    benchmark.group = f"linear layer, {what}, {shape}, {dtype}, {threads} threads"
    benchmark.extra_info.update(
        flop=2 * count * n_in * n_out * (1 + (what == "backward")), threads=threads, implementation=name
    )
    try:
        benchmark.pedantic((products if name == "product" else steps)[what], rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(before)
