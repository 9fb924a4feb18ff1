"""Times one call with pytest-benchmark, and notes beside its times what they are to be compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.cases import Case, Inputs
from benchmarks.floor import Floor
from benchmarks.memory import peak_mebibytes
from crossret_kernels import triplet_loss

R = TypeVar("R", bound=Tensor | Sequence[Tensor])

SECONDS = 0.5  # time a benchmark takes
SHORTEST = 1e-3  # a round shorter than this is timed as several calls
# Baselines of a training step: scores, the same again with their gradients, and one product for either side's
# features. A yardstick and no bound: pairs without a gradient, most of a hardest-negative loss's, need the first alone.
STEP_PRODUCTS = 4


def training_step(call: Callable[[], Tensor], inputs: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    """Gradients in both sides' features of the hardest-negative loss over the scores that `call` gives for `inputs`."""
    leaves = [inputs.regions.requires_grad_(), inputs.words.requires_grad_()]
    return lambda: torch.autograd.grad(triplet_loss(call()), leaves)


@dataclass(frozen=True)
class Bench:
    """One benchmark: a line of the report, in the group of all lines that differ from it by implementation."""

    benchmark: Any  # pytest-benchmark's fixture
    floor: Floor
    threads: int

    @property
    def timed(self) -> bool:
        """Whether this is a benchmark; otherwise it runs once, as a test."""
        return not self.benchmark.disabled

    def size(self, case: Case) -> Case:
        """The case itself, or its small likeness when it runs as a test."""
        return case if self.timed else case.small()

    def describe(self, operation: str, case: Case, dtype: torch.dtype, implementation: str) -> None:
        name = str(dtype).removeprefix("torch.")
        plural = "" if self.threads == 1 else "s"
        self.benchmark.group = f"{operation}, {case}, {name}, {self.threads} thread{plural}"
        self.benchmark.extra_info.update(
            operation=operation,
            case=str(case),
            shape=case.shape,
            images=case.n_images,
            captions=case.n_captions,
            dtype=name,
            threads=self.threads,
            implementation=implementation,
        )

    def measure(
        self,
        inputs: Inputs,
        call: Callable[[], R],
        check: Callable[[R], None] | None = None,
        training: bool = False,
    ) -> None:
        """Times `call`, which scores `inputs` or, with `training`, also has the gradients of both sides' features.

        `check` is given the results of an untimed call first. Medians of about `SECONDS` of calls, three at least
        unless one takes longer than that. The floor is measured before and after, so that both sides of a ratio are of
        the same moment; the better one counts.
        """
        if not self.timed:
            results = self.benchmark.pedantic(call)
            if check is not None:
                check(results)
            return
        dtype = inputs.regions.dtype
        rate = self.floor.flop_per_second(dtype, self.threads)
        started = time.perf_counter()
        peak, results = peak_mebibytes(call)
        seconds = time.perf_counter() - started
        if check is not None:
            check(results)
        del results
        rounds = 1 if seconds > SECONDS else min(max(int(SECONDS / seconds), 3), 50)
        self.benchmark.pedantic(call, rounds=rounds, iterations=max(1, round(SHORTEST / seconds)))
        rate = max(rate, self.floor.flop_per_second(dtype, self.threads))
        products = STEP_PRODUCTS if training else 1
        floor_seconds = products * inputs.flop / rate
        moved = inputs.bytes * (2 if training else 1)  # features and scores, and a gradient of each
        self.benchmark.extra_info.update(
            pairs=inputs.pairs,
            products=products,
            flop=inputs.flop,
            bytes=moved,
            peak_mebibytes=peak,
            floor_seconds=floor_seconds,
            floor_ratio=self.benchmark.stats.stats.median / floor_seconds,
            read_seconds=moved / self.floor.bytes_per_second(self.threads),
        )
