"""A backend for GPUs as the checks of `scan_scores` here find it: named, its sizes at hand, held against the oracle.

A module of tests inherits the checks' classes and has a fixture `kernels`, once for the module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from tests.kernels.strategies import Features
from tests.kernels.tolerance import Expectation

DIRECTIONS = pytest.mark.parametrize("direction", ["t2i", "i2t"])
LISTED = pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
# NumPy's, in Triton's interpreter, of the arithmetic that is asked for.
NO_NUMBERS = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@dataclass(frozen=True)
class Kernels:
    """One backend.

    Attributes:
        backend: its name.
        modules: where its sizes are looked up.
        least: sizes of workspaces of which every part, or run, has an item of either side.
        apart: of those that make sums of both sides go one after the other, likewise.
        runs: of those that have listed pairs come in several.
        before: called with what is about to be checked.
    """

    backend: str
    modules: tuple[ModuleType | type, ...]
    least: dict[str, int]
    apart: dict[str, int]
    runs: dict[str, int]
    before: Callable[[str], None] = field(default=lambda _: None)

    @contextmanager
    def sizes(self, **values: int) -> Iterator[None]:
        """Tiles, blocks and workspaces of these sizes, wherever they are looked up."""
        with pytest.MonkeyPatch.context() as patch, nothing_kept():
            for name, value in values.items():
                owners = [module for module in self.modules if hasattr(module, name)]
                assert owners, name
                for module in owners:
                    patch.setattr(module, name, value)
            yield

    def score(self, *arguments: Any, **options: Any) -> Tensor:
        return scan_scores(*arguments, backend=self.backend, **options)

    def held(self, batch: Features) -> Features:
        """Features as its products read float32: "cuda" rounds them to TF32."""
        return batch

    def check(self, batch: Features, dtype: torch.dtype = torch.float32, **options: Any) -> Expectation:
        """Scores and gradients of a batch against the float64 oracle."""
        self.before(f"{batch} {dtype} {options}")
        expected = Expectation.of(scan_scores, batch, dtype, **options)
        expected.check(self.backend)
        return expected


@contextmanager
def nothing_kept() -> Iterator[None]:
    """What follows from shapes, and is kept with them, is made anew here: for other sizes."""

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("crossret_kernels."):
                for value in list(vars(module).values()):
                    getattr(value, "cache_clear", lambda: None)()

    forget()
    yield
    forget()


def batch_of(
    n_images: int, n_captions: int, dim: int = 24, longest: tuple[int, int] = (12, 9), **more: Any
) -> Features:
    """Random items, by default of several lengths, whose products are exact in every precision but bfloat16."""
    generator = torch.Generator().manual_seed(n_images)
    sides = [
        torch.randn(n, rows, dim, generator=generator, dtype=torch.float64).half().double()
        for n, rows in zip((n_images, n_captions), longest, strict=True)
    ]
    lengths = [torch.randint(1, side.size(1) + 1, (side.size(0),), generator=generator) for side in sides]
    return Features(sides[0], sides[1], lengths[0], lengths[1], more.get("pairs"))


@contextmanager
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
