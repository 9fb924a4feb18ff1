"""The options of stacked cross attention: names, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from crossret_kernels.arithmetic import POOLINGS

DIRECTIONS = ("t2i", "i2t")
NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")
_FLOAT32 = torch.finfo(torch.float32)  # what the kernels compute with


@dataclass(frozen=True)
class CrossAttentionOptions:
    """One way to score a pair; `scan_scores` documents the fields.

    Raises ValueError where one is out of range, TypeError where one is no number or no flag.
    """

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
        check_flag("normalize", self.normalize)
        for name in ("clip_slope", "lambda_softmax", "lambda_lse"):
            check_number(name, getattr(self, name))
        if self.lambda_lse < _FLOAT32.tiny:
            raise ValueError(f"lambda_lse must be above 0 in float32, not {self.lambda_lse!r}")

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


def check_number(name: str, value: float) -> None:
    """Raises TypeError or ValueError naming the argument where `value` is no finite number of float32."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not _FLOAT32.min <= value <= _FLOAT32.max:
        raise ValueError(f"{name} must be a finite number in float32, not {value!r}")


def check_flag(name: str, value: bool) -> None:
    """Raises TypeError naming the argument where `value` is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
