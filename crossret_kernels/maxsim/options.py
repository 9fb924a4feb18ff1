"""The options of Sum-Max: names, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crossret_kernels.inputs.options import DIRECTIONS, Coded, check_flag, choose
from crossret_kernels.padded import arithmetic

POOLINGS = ("sum", "avg", "max")


@dataclass(frozen=True)
class MaxSimOptions(Coded):
    """One way to score a pair; `maxsim_scores` documents the fields. Raises ValueError where one is out of range,
    TypeError where `normalize` is no flag.
    """

    operation: ClassVar[str] = "maxsim_scores"
    direction: str
    pooling: str
    normalize: bool

    @property
    def way(self) -> str:
        return self.direction

    def __post_init__(self) -> None:
        choose("direction", self.direction, DIRECTIONS)
        choose("pooling", self.pooling, POOLINGS)
        check_flag("normalize", self.normalize)
        self.carry(DIRECTIONS.index(self.direction), self.normalize, arithmetic.POOLINGS.index(self.pooling))
