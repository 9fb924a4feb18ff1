"""The tolerance rule: twice what eager PyTorch loses at the same precision, three times in gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.strategies import Features

Result = tuple[Tensor, Tensor, Tensor]
EPS = torch.finfo(torch.float32).eps


@contextmanager
def cpu_isa(name: str | None) -> Iterator[None]:
    """Runs the native kernels of one instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        if name is not None:
            patch.setenv("CROSSRET_CPU_ISA", name)
        yield


def evaluate(function: Callable[..., Tensor], batch: Features, dtype: torch.dtype, **options: Any) -> Result:
    """Scores, and the gradients of their weighted sum, as float64."""
    regions, words = (side.to(dtype).clone().requires_grad_() for side in (batch.regions, batch.words))
    scores = function(regions, words, *batch.lengths, pairs=batch.pairs, **options)
    (scores * score_weights(scores.shape).to(scores.dtype)).sum().backward()
    assert regions.grad is not None
    assert words.grad is not None
    assert regions.grad.dtype == words.grad.dtype == dtype
    return scores.detach().double(), regions.grad.double(), words.grad.double()


def score_weights(shape: torch.Size) -> Tensor:
    """Fixed gradients of the scores, some of them zero as under a hardest-negative loss."""
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return weights.where(torch.rand(shape, generator=torch.Generator().manual_seed(8)) > 0.3, 0)


def eager_losses(function: Callable[..., Tensor], batch: Features, truth: Result, **options: Any) -> list[float]:
    """What eager float32 loses: the worst of a few orders of summation over D, as one order can be lucky."""
    worst = [0.0, 0.0, 0.0]
    for seed in range(3):
        order = torch.randperm(batch.regions.size(-1), generator=torch.Generator().manual_seed(seed))
        shuffled = Features(batch.regions[..., order], batch.words[..., order], *batch.lengths, batch.pairs)
        scores, *grads = evaluate(function, shuffled, torch.float32, backend="reference", **options)
        restored = [grad[..., order.argsort()] for grad in grads]
        for index, (ours, true) in enumerate(zip((scores, *restored), truth, strict=True)):
            worst[index] = max(worst[index], float((ours - true).abs().max()))
    return worst


@dataclass(frozen=True)
class Expectation:
    """The truth of a batch in float64 and how far from it a result may be: made once, for any number of backends."""

    function: Callable[..., Tensor]
    batch: Features
    dtype: torch.dtype
    options: dict[str, Any]
    truth: Result
    bounds: tuple[float, ...]

    @classmethod
    def of(cls, function: Callable[..., Tensor], batch: Features, dtype: torch.dtype, **options: Any) -> Expectation:
        """For the values that `dtype` holds; features of half precision are exact in eager float32 too."""
        batch = batch.to(dtype).to(torch.float64)
        truth = evaluate(function, batch, torch.float64, backend="reference", **options)
        losses = eager_losses(function, batch, truth, **options)
        floors = _rounding_floors(batch, truth, options)
        roundings = [0.0, *(torch.finfo(dtype).eps * float(grad.abs().max()) for grad in truth[1:])]
        bounds = (f * loss + floor + r for f, loss, floor, r in zip((2, 3, 3), losses, floors, roundings, strict=True))
        return cls(function, batch, dtype, options, truth, tuple(bounds))

    def check(self, backend: str, isa: str | None = None) -> None:
        with cpu_isa(isa):
            result = evaluate(self.function, self.batch, self.dtype, backend=backend, **self.options)
        names = ("scores", "regions.grad", "words.grad")
        for name, ours, true, bound in zip(names, result, self.truth, self.bounds, strict=True):
            assert torch.isfinite(ours).all(), f"{name} of {isa or backend} are not finite"
            error = float((ours - true).abs().max())
            assert error <= bound, f"{name} of {isa or backend} are off by {error:.3g}, more than {bound:.3g}"


def _rounding_floors(batch: Features, truth: Result, options: dict[str, Any]) -> list[float]:
    """A few units in the last place of what is summed up: eager may be exact by luck, or where all terms cancel."""
    norms = torch.cat([side.flatten(0, 1).norm(dim=-1) for side in (batch.regions, batch.words)])
    shortest = float(norms[norms > 0].min())
    unit = 8 * EPS * (1 + abs(options.get("lambda_softmax", 0.0)))
    longest = float(norms.max())
    slope = max(1.0, longest) if "lambda_softmax" not in options else max(1.0, longest) ** 2 / shortest
    scores = unit * max(1.0, float(truth[0].abs().max()))
    return [scores, *(unit * max(float(grad.abs().max()), slope) for grad in truth[1:])]
