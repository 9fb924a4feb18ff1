"""Options of the ranking losses, checked, and as operations take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from crossret_kernels.inputs.options import Coded
from crossret_kernels.inputs.score_matrix import REDUCTIONS

NEGATIVES = ("hardest", "sum", "softmax")


@dataclass(frozen=True)
class LossOptions(Coded):
    """Options of a loss besides scores and ids; ValueError or TypeError where a value is none."""

    schema: ClassVar[str] = "float margin, int negatives, float p, int reduction"
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {"negatives": NEGATIVES, "reduction": REDUCTIONS}
    margin: float
    negatives: str
    p: float
    reduction: str

    def __post_init__(self) -> None:
        self.check()
        if self.p < 1:
            raise ValueError(f"p must be at least 1, not {self.p!r}")
        self.carry()
