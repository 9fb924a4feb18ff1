"""Operations of the other papers on a GPU, forward and backward, and what no implementation can do without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.checks import Check, errors, prepared
from benchmarks.gpu.inputs import DTYPES
from benchmarks.gpu.work import Calls, Floor

NAMES = {"gated_attention_scores": "gate", "heterogeneous_scores": "HAN, one layer",
         "scan_attend": "attended vectors"}  # fmt: skip
STEP = 3  # a forward, and about two of it for the gradients


@dataclass(frozen=True)
class OtherCase:
    """A call of `checks.Check`'s operations, timed with its gradients or without."""

    check: Check
    training: bool
    implementations: tuple[str, ...]
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return f"{NAMES[self.check.operation]} {'training step' if self.training else 'forward'}"

    @property
    def shape(self) -> str:
        rows, others, dim = self.check.shape
        images, captions = self.check.items
        return f"{images} × {rows} by {captions} × {others}, D = {dim}"

    @property
    def precision(self) -> str:
        return self.check.precision

    def slower(self, name: str) -> dict[str, float] | None:
        """Nothing is wanted."""
        return None

    def work(self, device: torch.device) -> OtherWork:
        return OtherWork(self, device)

    @property
    def floor(self) -> Floor:
        """Products of the operation."""
        (rows, others, dim), (images, captions) = self.check.shape, self.check.items
        times = STEP if self.training else 1
        pairs = 40 if self.check.operation == "scan_attend" else images * captions
        # Two products of a hidden unit's length a pair; four of all rows in HAN's layer and one to match; two attended.
        of_pair = {"gated_attention_scores": 4 * dim**2, "heterogeneous_scores": 10 * rows * others * dim}
        amount = pairs * of_pair.get(self.check.operation, 4 * rows * others * dim)
        return Floor("products", (), times, self.precision, amount)


class OtherWork:
    """A case on a device."""

    def __init__(self, case: OtherCase, device: torch.device) -> None:
        self.case, self.device = case, device

    def calls(self, name: str) -> Calls:
        check, dtype = self.case.check._replace(backend=name), DTYPES[self.case.precision]
        error = errors(check._replace(items=(6, 5)), self.device)[self.case.training][0]
        sides, call = prepared(check, dtype, name, self.device, dtype)
        floor, images, captions = self.case.floor, *check.items
        run = partial(_step, call, sides) if self.case.training else partial(_forward, call)
        return Calls([run], error, images * captions, int(floor.amount * floor.times), floor)


def _step(call: Any, sides: Any) -> Any:
    return torch.autograd.grad(call().float().sum(), sides)


def _forward(call: Any) -> Any:
    with torch.no_grad():
        return call()
