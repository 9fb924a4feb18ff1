"""What `attention_pool` is to do by every backend: the formula by hand, batches of any layout, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import attention_pool_weights

LAYOUTS = ("padded", "packed", "list")
HALVES = (torch.bfloat16, torch.float16)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def poolings(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Padded values and logits, and the items' lengths."""
    lengths = draw(st.lists(st.sampled_from((1, 2, 7, 16)), min_size=1, max_size=6))
    width = max(lengths) + draw(st.integers(0, 2))
    dim = draw(st.sampled_from((1, 3, 16, 70, 133)))
    heads = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 12, 13, 33)))
    scale = draw(st.sampled_from((0.0, 1.0, 300.0)))
    return randn(len(lengths), width, dim), scale * randn(len(lengths), width, heads, seed=1), lengths


def laid_out(values: Tensor, logits: Tensor, lengths: list[int], layout: str) -> tuple[Any, ...]:
    if layout == "padded":
        return values, logits, lengths
    sides = [[item[:length] for item, length in zip(side, lengths, strict=True)] for side in (values, logits)]
    if layout == "list":
        return tuple(sides)
    return (torch.cat(sides[0]), torch.tensor([0, *np.cumsum(lengths)])), torch.cat(sides[1])


def by_hand(values: Tensor, logits: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Item by item, head by head, in NumPy."""
    n, width, dim = values.shape
    heads = logits.size(2)
    pooled, weights = np.zeros((n, heads, dim)), np.zeros((n, heads, width))
    for item, length in enumerate(lengths):
        for head in range(heads):
            a = logits[item, :length, head].numpy()
            exponentials = np.exp(a - a.max())
            weights[item, head, :length] = exponentials / exponentials.sum()
            pooled[item, head] = (weights[item, head, :length, None] * values[item, :length].numpy()).sum(0)
    return torch.from_numpy(pooled), torch.from_numpy(weights)


def results_of(values: Tensor, logits: Tensor, lengths: Any, backend: str) -> tuple[Tensor, ...]:
    """Both results, and the gradients of the sums of their squares."""
    leaves = values.clone().requires_grad_(), logits.clone().requires_grad_()
    outputs = attention_pool_weights(*leaves, lengths, backend=backend)
    return *outputs, *torch.autograd.grad([x.square().sum() for x in outputs], leaves)
