"""The options of stacked cross attention: names, defaults, ranges, and what operations take them as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from crossret_kernels.inputs.options import DIRECTIONS, FLOAT32_TINY, Directed, check_flag, choose, keep_numbers
from crossret_kernels.padded.arithmetic import POOLINGS

NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")


class ScanFields(TypedDict, total=False):
    """The fields of `ScanOptions`, which documents them, as keywords of functions."""

    direction: str
    normalize: bool
    raw_feature_norm: str
    clip_slope: float
    lambda_softmax: float
    pooling: str
    lambda_lse: float


@dataclass(frozen=True, kw_only=True)
class ScanOptions(Directed):
    """How `scan_scores`, `scan_topk`, `scan_attend`, `scan_attention` and `scan_contributions` score a pair.

    These functions take one as `options`, and its fields as keywords, which come before those of `options`.

    Attributes:
        direction: "t2i": words attend to regions (Text-Image); "i2t": regions attend to words (Image-Text).
        normalize: whether to divide every region and word by its L2 norm first (Eq. 1); zero vectors stay zero.
        raw_feature_norm: similarities' normalisation along the attending side: "softmax", "l2norm", "clipped_l2norm",
            "l1norm", "clipped_l1norm", "clipped" or "no_norm".
        clip_slope: slope of the leaky clip below zero in the clipped modes; 0 is the paper's [s]₊, 0.1 its code.
        lambda_softmax: inverse temperature λ₁ of the attention (Eq. 3).
        pooling: of the relevances over the attending side: "lse" (Eqs. 5, 7), "avg" (Eqs. 6, 8), "sum", "max" or
            "softmax", Σ p_i R_i with p = softmax(λ₂ R), the weighted pooling of X-CLIP and of CHAN's ablations.
        lambda_lse: λ₂ of "lse" and "softmax", above 0.

    Raises:
        ValueError: a field is out of range. TypeError: one is no number or no flag. Both name it.
    """

    schema: ClassVar[str] = (
        "int direction, bool normalize, int raw_feature_norm, float clip_slope, float lambda_softmax, int pooling, "
        "float lambda_lse"
    )
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "direction": DIRECTIONS, "raw_feature_norm": NORM_MODES, "pooling": POOLINGS,
    }  # fmt: skip
    direction: str = "t2i"
    normalize: bool = False
    raw_feature_norm: str = "clipped_l2norm"
    clip_slope: float = 0.1
    lambda_softmax: float = 9.0
    pooling: str = "avg"
    lambda_lse: float = 6.0

    def __post_init__(self) -> None:
        for name, allowed in self.modes.items():
            choose(name, getattr(self, name), allowed)
        check_flag("normalize", self.normalize)
        keep_numbers(self, "clip_slope", "lambda_softmax", "lambda_lse")
        if self.lambda_lse < FLOAT32_TINY:
            raise ValueError(f"lambda_lse must be above 0 in float32, not {self.lambda_lse!r}")
        self.carry()

    @property
    def clips(self) -> bool:
        return self.raw_feature_norm.startswith("clipped")

    @property
    def norm(self) -> str:
        """raw_feature_norm without the clip: "softmax", "l2norm", "l1norm" or "none"."""
        name = self.raw_feature_norm.removeprefix("clipped_")
        return name if name in ("softmax", "l2norm", "l1norm") else "none"
