"""The options of stacked cross attention: names, defaults and checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crossret_kernels.arithmetic import POOLINGS

DIRECTIONS = ("t2i", "i2t")
NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")


@dataclass(frozen=True)
class CrossAttentionOptions:
    """One way to score a pair; `scan_scores` documents the fields. Raises ValueError where one is out of range."""

    direction: str
    raw_feature_norm: str
    clip_slope: float
    lambda_softmax: float
    pooling: str
    lambda_lse: float
    normalize: bool

    def __post_init__(self) -> None:
        choose("direction", self.direction, DIRECTIONS)
        choose("raw_feature_norm", self.raw_feature_norm, NORM_MODES)
        choose("pooling", self.pooling, POOLINGS)
        for name in ("clip_slope", "lambda_softmax", "lambda_lse"):
            if not -math.inf < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number, not {getattr(self, name)!r}")
        if self.lambda_lse <= 0:
            raise ValueError(f"lambda_lse must be above 0, not {self.lambda_lse!r}")

    @property
    def clips(self) -> bool:
        return self.raw_feature_norm.startswith("clipped")

    @property
    def norm(self) -> str:
        """What remains of raw_feature_norm without the clip: "softmax", "l2norm", "l1norm" or "none"."""
        name = self.raw_feature_norm.removeprefix("clipped_")
        return name if name in ("softmax", "l2norm", "l1norm") else "none"


def choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ValueError naming the argument where `value` is none of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
