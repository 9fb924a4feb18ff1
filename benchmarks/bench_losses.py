"""InfoNCE and the sigmoid loss of square score matrices with gradients: "torch" beside PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from benchmarks.conftest import THREADS
from crossret_kernels import infonce_loss, sigmoid_loss

Loss = Callable[..., Tensor]


def eager_infonce(scores: Tensor, scale: Tensor) -> Tensor:
    logits, own = scale * scores, torch.arange(len(scores))
    return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


def eager_sigmoid(scores: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(scores)) - 1
    return -logsigmoid(signs * (scale * scores + bias)).sum() / len(scores)


# Functions of this package and of PyTorch, with the numbers that training starts from.
LOSSES: dict[str, tuple[Loss, Loss, tuple[float, ...]]] = {
    "infonce": (infonce_loss, eager_infonce, (1 / 0.07,)),
    "sigmoid": (sigmoid_loss, eager_sigmoid, (10.0, -10.0)),
}


@pytest.mark.parametrize("n", [128, 1024, pytest.param(8192, marks=pytest.mark.full)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["torch", "eager"])
def test_loss_and_gradients(benchmark: Any, name: str, loss: str, n: int) -> None:
    n = n if not benchmark.disabled else 8
    own, eager, numbers = LOSSES[loss]
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(n, n, generator=generator) * 0.1 + 0.15 * torch.eye(n)
    leaves = [scores.requires_grad_(), *(torch.tensor(number, requires_grad=True) for number in numbers)]

    def step(name: str = name) -> tuple[Tensor, ...]:
        made = eager(*leaves) if name == "eager" else own(*leaves, backend=name)
        return made, *torch.autograd.grad(made, leaves)

    for made, expected in zip(step(), step("eager"), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max()))
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    benchmark.group = f"{loss} loss, {n} x {n}, {THREADS} threads"
    benchmark.extra_info.update(scores=n * n, threads=THREADS, implementation=name)
    try:
        benchmark.pedantic(step, rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(before)
