"""The options of Sum-Max: names, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass

from crossret_kernels.inputs.options import DIRECTIONS, Directed, check_flag, choose
from crossret_kernels.padded import arithmetic

POOLINGS = ("sum", "avg", "max")


@dataclass(frozen=True)
class MaxSimOptions(Directed):
    """One way to score a pair; `maxsim_scores` documents the fields. Raises ValueError where one is out of range,
    TypeError where `normalize` is no flag.
    """

    direction: str
    pooling: str
    normalize: bool

    def __post_init__(self) -> None:
        choose("direction", self.direction, DIRECTIONS)
        choose("pooling", self.pooling, POOLINGS)
        check_flag("normalize", self.normalize)
        self.carry(DIRECTIONS.index(self.direction), self.normalize, arithmetic.POOLINGS.index(self.pooling))
