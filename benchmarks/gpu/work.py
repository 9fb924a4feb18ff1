"""Work of a case of the GPU benchmarks on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], Any]


@dataclass(frozen=True)
class Floor:
    """Floor that an implementation's time is divided by.

    Attributes:
        name: what it does.
        calls: one for each set of inputs, all alike; none where a rate of the card makes it.
        times: how many of them make it.
        rate, amount: of `facts.rates`, and of what it counts.
    """

    name: str
    calls: Sequence[Call] = ()
    times: float = 1.0
    rate: str = ""
    amount: float = 0.0


@dataclass(frozen=True)
class Calls:
    """An implementation's, one for each set of inputs, after its results were checked.

    Attributes:
        error: how far they are from float64.
        pairs, work: of one call (`results.Measurement`).
        floor: of one call.
        replays: the same with lengths on the device, where a CUDA graph reads them; None where nothing has lengths.
    """

    calls: Sequence[Call]
    error: float
    pairs: int
    work: int
    floor: Floor
    replays: Sequence[Call] | None = None


class Work(Protocol):
    """A case's inputs on a device."""

    def calls(self, name: str) -> Calls:
        """Ratios of the named implementation.

        Raises:
            ImportError: it is not installed. AssertionError: its results are wrong.
        """
        ...


class GpuCase(Protocol):
    """A case that several implementations are measured by."""

    @property
    def operation(self) -> str:
        """Name of the operation."""
        ...

    @property
    def shape(self) -> str:
        """Sizes of the inputs, in words."""
        ...

    @property
    def precision(self) -> str:
        """A name of `inputs.DTYPES`."""
        ...

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names of the implementations."""
        ...

    @property
    def targets(self) -> Mapping[str, float]:
        """Targets of implementations' ratios to the floor."""
        ...

    def slower(self, name: str) -> dict[str, float] | None:
        """How many times as slow as others this implementation is wanted to be."""
        ...

    def work(self, device: torch.device) -> Work:
        """Work of the case."""
        ...
