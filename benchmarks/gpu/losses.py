"""Ranking losses with their gradients on a GPU, beside reading the scores and writing as much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.inputs import rotated
from benchmarks.gpu.work import Calls, Floor
from crossret_kernels import triplet_loss

TOLERANCE = 2e-2  # where two hinges differ by rounding another one may be the hardest


@dataclass(frozen=True)
class LossCase:
    """Losses of n × n float32 scores.

    Attributes:
        targets: of ratios to the floor.
    """

    negatives: str
    n: int
    implementations: tuple[str, ...]
    targets: Mapping[str, float] = field(default_factory=dict)
    precision: str = "float32"

    @property
    def operation(self) -> str:
        return f"triplet_loss {self.negatives}, forward + backward"

    @property
    def shape(self) -> str:
        return f"{self.n:,} × {self.n:,}"

    def slower(self, name: str) -> dict[str, float] | None:
        """Nothing is wanted."""
        return None

    def work(self, device: torch.device) -> LossWork:
        return LossWork(self, device)


class LossWork:
    """A case's scores on a device: cosines of which the positives are the greater, a third of the hinges zero."""

    def __init__(self, case: LossCase, device: torch.device) -> None:
        self.case = case
        generator = torch.Generator(device).manual_seed(0)
        first = torch.randn(case.n, case.n, generator=generator, device=device) * 0.1
        first = (first + 0.15 * torch.eye(case.n, device=device)).requires_grad_()
        self.sets = rotated(first, first.nbytes, lambda scores: scores.detach().clone().requires_grad_())
        out = torch.empty_like(first, requires_grad=False)
        self.floor = Floor("read + write", [partial(out.copy_, scores.detach()) for scores in self.sets])

    def calls(self, name: str) -> Calls:
        error = self.error(self.step(self.sets[0], name))
        calls = [partial(self.step, scores, name) for scores in self.sets]
        return Calls(calls, error, self.case.n**2, 2 * self.sets[0].nbytes, self.floor)

    def step(self, scores: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        loss = triplet_loss(scores, negatives=self.case.negatives, backend=backend)
        return loss.detach(), *torch.autograd.grad(loss, scores)

    def error(self, made: tuple[Tensor, Tensor]) -> float:
        """‖difference‖ / ‖gradient‖ to float64."""
        loss, gradient = self.step(self.sets[0].detach().double().requires_grad_(), "torch")
        error = float((made[1].double() - gradient).norm() / gradient.norm())
        of_loss = float((made[0].double() - loss).abs() / loss.abs())
        assert max(error, of_loss) <= TOLERANCE, f"{self.case.operation}: off by {error:.3g}, the loss by {of_loss:.3g}"
        return error
