"""The options of Sum-Max: names, defaults, ranges, and what operations take them as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from crossret_kernels.inputs.options import DIRECTIONS, Directed, check_flag, choose
from crossret_kernels.padded import arithmetic

POOLINGS = ("sum", "avg", "max")


class MaxSimFields(TypedDict, total=False):
    """The fields of `MaxSimOptions`, which documents them, as keywords of functions."""

    direction: str
    normalize: bool
    pooling: str


@dataclass(frozen=True, kw_only=True)
class MaxSimOptions(Directed):
    """How `maxsim_scores`, `maxsim_topk` and `maxsim_argmax` score a pair.

    These functions take one as `options`, and its fields as keywords, which come before those of `options`.

    Attributes:
        direction: "t2i": every word takes its best region (Eq. 9); "i2t": every region its best word (Eq. 10).
        normalize: whether to divide every region and word by its L2 norm first; zero vectors stay zero.
        pooling: of those maxima: "sum", "avg" or "max".

    Raises:
        ValueError: a field is out of range. TypeError: `normalize` is no flag. Both name it.
    """

    schema: ClassVar[str] = "int direction, bool normalize, int pooling"
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {"direction": DIRECTIONS, "pooling": arithmetic.POOLINGS}
    direction: str = "t2i"
    normalize: bool = False
    pooling: str = "sum"

    def __post_init__(self) -> None:
        choose("direction", self.direction, DIRECTIONS)
        choose("pooling", self.pooling, POOLINGS)
        check_flag("normalize", self.normalize)
        self.carry()
