"""The options of Sum-Max: names, defaults, ranges, and what operations take them as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from crossret_kernels.inputs.options import (
    DIRECTIONS,
    FLOAT32_TINY,
    Directed,
    checked,
)
from crossret_kernels.padded import arithmetic

POOLINGS = (*arithmetic.POOLINGS, "topk")
CONTEXT_POOLINGS = ("max", "lse")
BOTH = "both"  # the mean of either direction's scores; kernels know of these alone


class PoolingFields(TypedDict, total=False):
    """The fields of `MaxSimOptions` that go with one pooling or another."""

    clip_slope: float
    lambda_lse: float
    top: int
    context_pooling: str
    temperature: float


class MaxSimFields(PoolingFields, total=False):
    """The fields of `MaxSimOptions`, which documents them, as keywords of functions."""

    direction: str
    normalize: bool
    pooling: str


@dataclass(frozen=True, kw_only=True)
class MaxSimOptions(Directed):
    """How `maxsim_scores`, `maxsim_topk` and `maxsim_argmax` score a pair.

    These functions take one as `options`, and its fields as keywords, which come before those of `options`.

    Attributes:
        direction: "t2i": every word takes its best region (Eq. 9); "i2t": every region its best word (Eq. 10); "both":
            the mean of both scores, the alignment of LAPS, AVSE and SEPS, of one product of features.
        normalize: whether to divide every region and word by its L2 norm first; zero vectors stay zero.
        pooling: of those maxima m: "sum", "avg" or "max"; "lse", log(Σ exp(λ m)) / λ, CHAN's and VSSR's; "softmax",
            Σ p m with p = softmax(λ m); "topk", the sum of the `top` largest, as ColBERT's FLIPR takes it.
        clip_slope: slope of a leaky clip of similarities below zero, at least 0; 1 clips nothing, LAPS takes 0.1.
        lambda_lse: λ of "lse" and "softmax", above 0.
        top: how many maxima "topk" adds up, at least 1; all of an item that has fewer. Of equals the first.
        context_pooling: "max", or "lse", the soft maximum τ log(Σ exp(s / τ)) of a query's similarities s, as ColPali's
            smooth maximum; "cpu" holds a pair's similarities for it. Not of `maxsim_argmax`, nor beside weights.
        temperature: τ of that, above 0.

    Raises:
        ValueError: a field is out of range. TypeError: one is no number or no flag. Both name it.
    """

    schema: ClassVar[str] = (
        "int direction, bool normalize, int pooling, float clip_slope, float lambda_lse, int top, int context_pooling, "
        "float temperature"
    )
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "direction": (*DIRECTIONS, BOTH), "pooling": POOLINGS, "context_pooling": CONTEXT_POOLINGS,
    }  # fmt: skip
    direction: str = "t2i"
    normalize: bool = False
    pooling: str = "sum"
    clip_slope: float = 1.0
    lambda_lse: float = 6.0
    top: int = 0
    context_pooling: str = "max"
    temperature: float = 0.1

    def __post_init__(self) -> None:
        self.check()
        if self.clip_slope < 0:
            raise ValueError(f"clip_slope must be at least 0, not {self.clip_slope!r}")
        for name in ("lambda_lse", "temperature"):
            if getattr(self, name) < FLOAT32_TINY:
                raise ValueError(f"{name} must be above 0 in float32, not {getattr(self, name)!r}")
        if not isinstance(self.top, int) or isinstance(self.top, bool):
            raise TypeError(f"top must be an integer, not {type(self.top).__name__}")
        if (self.pooling == "topk") != (self.top >= 1):
            raise ValueError(f"top must be at least 1 with pooling='topk', and is for it alone, not {self.top}")
        self.carry()

    @property
    def turned(self) -> MaxSimOptions:
        """These with the other direction."""
        return checked(MaxSimOptions, self, {"direction": DIRECTIONS[1 - DIRECTIONS.index(self.direction)]})

    @property
    def plain(self) -> bool:
        """Whether queries' maxima, no soft ones, count as they are, each as much as the others."""
        return self.clip_slope == 1 and self.pooling in ("sum", "avg", "max") and self.context_pooling == "max"
