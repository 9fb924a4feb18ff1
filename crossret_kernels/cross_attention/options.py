"""The options of stacked cross attention: names, defaults, ranges, and what operations take them as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from crossret_kernels.inputs.options import (
    DIRECTIONS,
    FLOAT32_TINY,
    Directed,
    check_number,
    checked,
)
from crossret_kernels.padded.arithmetic import POOLINGS

NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm", "minmax")
RELEVANCES = ("cosine", "projection")
# Values of options that kernels of "cuda" do not compute by.
_NOT_OF_CUDA = {"raw_feature_norm": "minmax", "relevance": "projection", "focal": True}


class ScanFields(TypedDict, total=False):
    """The fields of `ScanOptions`, which documents them, as keywords of functions."""

    direction: str
    normalize: bool
    raw_feature_norm: str
    clip_slope: float
    lambda_softmax: float | tuple[float, float]
    pooling: str
    lambda_lse: float
    relevance: str
    focal: bool
    threshold: float | None


@dataclass(frozen=True, kw_only=True)
class ScanOptions(Directed):
    """How `scan_scores`, `scan_topk`, `scan_attend`, `scan_attend_scores`, `scan_attention` and `scan_contributions`
    score a pair.

    These functions take one as `options`, and its fields as keywords, which come before those of `options`.

    Attributes:
        direction: "t2i": words attend to regions (Text-Image); "i2t": regions attend to words (Image-Text); "both": the
            mean of both directions' scores, as SCAN's ensembles take it, of `scan_scores` and `scan_topk` alone.
            "torch" makes both of one product, and "cpu" where docs/kernels.md §1 says; else a call makes each.
        normalize: whether to divide every region and word by its L2 norm first (Eq. 1); zero vectors stay zero.
        raw_feature_norm: similarities' normalisation along the attending side: "softmax", "l2norm", "clipped_l2norm",
            "l1norm", "clipped_l1norm", "clipped" or "no_norm". "minmax" (SPARC, Bica et al. 2024) has no softmax behind
            it: of the similarities s of a query with its C contexts n = (s − min s) / (max s − min s), 0 where it is
            below the threshold, and the weights are n / Σ n. Gradients go through min and max, which ties share. Where
            all s are equal bit for bit, as of one context, the weights are 1 / C and have no gradient; what rounding
            keeps apart, as it may products of equal rows by PyTorch operations, is spread, too.
        clip_slope: slope of the leaky clip below zero in the clipped modes; 0 is the paper's [s]₊, 0.1 its code.
        lambda_softmax: inverse temperature λ₁ of the attention (Eq. 3), which "minmax" does not use; of direction
            "both" one for both, or a pair (of t2i, of i2t).
        pooling: of the relevances over the attending side: "lse" (Eqs. 5, 7), "avg" (Eqs. 6, 8), "sum", "max" or
            "softmax", Σ p_i R_i with p = softmax(λ₂ R), the weighted pooling of X-CLIP and of CHAN's ablations.
        lambda_lse: λ₂ of "lse" and "softmax", above 0.
        relevance: of a query q that attends to a: "cosine" (Eq. 4), or "projection", q·a / ‖a‖, the cosine times ‖q‖
            (CHAN, Pan et al. 2023: direction "i2t", raw_feature_norm "no_norm", lambda_softmax one by its τ).
        focal: whether of a query's C weights those above their mean alone stay, normalised to the sum 1 again (BFAN,
            Liu et al. 2019, "equal"). Which stay has no gradient. A weight less than 2⁻¹⁴ of the mean below it stays,
            too: so all of equal weights do, however they are rounded, where the published code divides 0 by 0 or keeps
            what rounding lifts.
        threshold: of "minmax" alone, 0 to 1; None: 1 / C.

    Backend "cuda" serves neither "minmax" nor "projection" nor focal weights; the others serve all.

    Raises:
        ValueError: a field is out of range. TypeError: one is no number or no flag. Both name it.
    """

    schema: ClassVar[str] = (
        "int direction, bool normalize, int raw_feature_norm, float clip_slope, float lambda_softmax, int pooling, "
        "float lambda_lse, int relevance, bool focal, float? threshold"
    )
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "direction": (*DIRECTIONS, "both"), "raw_feature_norm": NORM_MODES, "pooling": POOLINGS,
        "relevance": RELEVANCES,
    }  # fmt: skip
    direction: str = "t2i"
    normalize: bool = False
    raw_feature_norm: str = "clipped_l2norm"
    clip_slope: float = 0.1
    lambda_softmax: float | tuple[float, float] = 9.0
    pooling: str = "avg"
    lambda_lse: float = 6.0
    relevance: str = "cosine"
    focal: bool = False
    threshold: float | None = None

    def __post_init__(self) -> None:
        both, pair = self.direction == "both", self.lambda_softmax
        self.check(*(("lambda_softmax",) if isinstance(pair, tuple) else ()))
        if isinstance(pair, tuple):
            if not both or len(pair) != 2:
                raise ValueError(f"lambda_softmax is a number, or of direction 'both' a pair (t2i, i2t), not {pair!r}")
            object.__setattr__(self, "lambda_softmax", tuple(check_number("lambda_softmax", x) for x in pair))
        if self.lambda_lse < FLOAT32_TINY:
            raise ValueError(f"lambda_lse must be above 0 in float32, not {self.lambda_lse!r}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1] or None, not {self.threshold!r}")
        if self.threshold is not None and self.raw_feature_norm != "minmax":
            raise ValueError(f"threshold is for raw_feature_norm='minmax' alone, not {self.raw_feature_norm!r}")
        if not both:
            self.carry()

    @property
    def ways(self) -> tuple[ScanOptions, ...]:
        if self.direction != "both":
            return (self,)
        value = self.lambda_softmax
        lambdas = value if isinstance(value, tuple) else (value, value)
        fields = ({"direction": way, "lambda_softmax": x} for way, x in zip(DIRECTIONS, lambdas, strict=True))
        return tuple(checked(ScanOptions, self, overrides) for overrides in fields)

    def unsupported(self, backend: str) -> str | None:
        refusals = _NOT_OF_CUDA if backend == "cuda" else {}
        reasons = (f"{name}={value!r}" for name, value in refusals.items() if getattr(self, name) == value)
        return next(reasons, None)

    @property
    def clips(self) -> bool:
        return self.raw_feature_norm.startswith("clipped")

    @property
    def norm(self) -> str:
        """raw_feature_norm without the clip: "softmax", "l2norm", "l1norm", "minmax" or "none"."""
        name = self.raw_feature_norm.removeprefix("clipped_")
        return name if name in ("softmax", "l2norm", "l1norm", "minmax") else "none"

    @property
    def inverse_temperature(self) -> float:
        """λ₁ of one direction."""
        assert not isinstance(self.lambda_softmax, tuple)
        return self.lambda_softmax
