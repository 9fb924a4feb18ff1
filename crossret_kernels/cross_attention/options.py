"""The options of stacked cross attention: names, defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass

from crossret_kernels.inputs.options import DIRECTIONS, FLOAT32_TINY, Directed, check_flag, choose, keep_numbers
from crossret_kernels.padded.arithmetic import POOLINGS

NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")


@dataclass(frozen=True)
class CrossAttentionOptions(Directed):
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
        keep_numbers(self, "clip_slope", "lambda_softmax", "lambda_lse")
        if self.lambda_lse < FLOAT32_TINY:
            raise ValueError(f"lambda_lse must be above 0 in float32, not {self.lambda_lse!r}")
        self.carry(
            DIRECTIONS.index(self.direction), self.normalize, NORM_MODES.index(self.raw_feature_norm), self.clip_slope,
            self.lambda_softmax, POOLINGS.index(self.pooling), self.lambda_lse,
        )  # fmt: skip

    @classmethod
    def of_codes(
        cls, direction: int, normalize: bool, norm: int, clip_slope: float, lambda_softmax: float, pooling: int,
        lambda_lse: float,
    ) -> CrossAttentionOptions:  # fmt: skip
        """From what operations take."""
        return cls(
            DIRECTIONS[direction],
            NORM_MODES[norm],
            clip_slope,
            lambda_softmax,
            POOLINGS[pooling],
            lambda_lse,
            normalize,
        )

    @property
    def clips(self) -> bool:
        return self.raw_feature_norm.startswith("clipped")

    @property
    def norm(self) -> str:
        """What remains of raw_feature_norm without the clip: "softmax", "l2norm", "l1norm" or "none"."""
        name = self.raw_feature_norm.removeprefix("clipped_")
        return name if name in ("softmax", "l2norm", "l1norm") else "none"
