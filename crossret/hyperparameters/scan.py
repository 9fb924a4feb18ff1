"""Hyper-parameters of SCAN, and the settings of its paper by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from crossret.hyperparameters.config import check_at_least, check_positive, option
from crossret.hyperparameters.model import SHARPENED, ModelConfig, Negatives, Pooling

CrossAttention: TypeAlias = Literal["t2i", "i2t", "sum_max_t2i", "sum_max_i2t", "ensemble"]
RawFeatureNorm: TypeAlias = Literal[
    "softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm", "minmax"
]

_T2I_LSE = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "lse", "lambda_lse": 6.0}
_T2I_AVG = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "avg"}
_I2T_AVG = {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "avg"}
_PLUS_I2T_AVG = {"cross_attention": "ensemble", "i2t_lambda_softmax": 4.0, "i2t_pooling": "avg"}
_PLUS_I2T_LSE = {"cross_attention": "ensemble", "i2t_lambda_softmax": 4.0, "i2t_pooling": "lse"}


@dataclass(frozen=True)
class ScanConfig(ModelConfig):
    """Hyper-parameters of SCAN; the defaults are the paper's Text-Image AVG model.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``.
        embed_dim: D, length of region and word embeddings and of the GRU's state.
        word_dim: length of a word's embedding, the GRU's input.
        bidirectional: bidirectional GRU, or a forward one (Table 4).
        image_norm, text_norm: L2-normalise every region and every word; without ``image_norm``, Table 4's ablation.
        region_count: keep an image's first k regions, which detectors list by confidence (Table 5); None keeps all.
            Data with fewer are refused, while images of ``encode_images`` may have any number.
        cross_attention: "t2i" (Text-Image, Eqs. 7, 8), "i2t" (Image-Text, Eqs. 5, 6), "sum_max_t2i" (Eq. 9),
            "sum_max_i2t" (Eq. 10), or "ensemble": the mean of t2i and i2t scores over the same encoders. The paper's
            own ensembles (Section 4.2) average the scores of two models that were trained apart, as
            `crossret evaluate RUN DATA --ensemble RUN` does.
        raw_feature_norm, clip_slope: normalisation of similarities; the paper's [s]₊ is clip_slope 0, its code's 0.1.
            "minmax" is SPARC's attention, which has no λ₁.
        focal: whether a query attends to contexts above its mean alone (BFAN).
        lambda_softmax, pooling, lambda_lse: λ₁, pooling and λ₂ of the one direction, of t2i in an ensemble.
            Sum-Max uses none of them. λ₂ is used by "lse" and "softmax" alone.
        i2t_lambda_softmax, i2t_pooling, i2t_lambda_lse: the same of i2t in an ensemble, used there alone.
        margin: alpha of the triplet loss.
        negatives: "hardest" (Eq. 12), or "sum" over all negatives of the batch (Eq. 11).

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = option(1024, "Dimensions in which regions and words meet.", size=True)
    word_dim: int = option(300, "Dimensions of a word's embedding.", size=True)
    bidirectional: bool = option(True, "Read captions both ways, or forward only.")
    image_norm: bool = option(True, "L2-normalise regions.")
    text_norm: bool = option(True, "L2-normalise words.")
    region_count: int | None = option(None, "Use an image's first regions only.", size=True)
    cross_attention: CrossAttention = option("t2i", "Who attends to whom; by default t2i.")
    raw_feature_norm: RawFeatureNorm = option("clipped_l2norm", "Normalisation of similarities.")
    clip_slope: float = option(0.1, "Slope of the clip below zero; the paper's is 0.")
    focal: bool = option(False, "Attend to what is above the mean alone (BFAN).")
    lambda_softmax: float = option(9.0, "Inverse temperature of the attention.")
    pooling: Pooling = option("avg", "How relevances become a score.")
    lambda_lse: float = option(6.0, "Sharpness of lse and softmax pooling.")
    i2t_lambda_softmax: float = option(4.0, "As lambda_softmax, of i2t in an ensemble.")
    i2t_pooling: Pooling = option("avg", "As pooling, of i2t in an ensemble.")
    i2t_lambda_lse: float = option(5.0, "As lambda_lse, of i2t in an ensemble.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Negatives = option("hardest", "Negatives of the triplet loss.")

    OF_WORDS: ClassVar[tuple[str, ...]] = (*ModelConfig.OF_WORDS, "bidirectional")
    kind: ClassVar[str] = "scan"
    # "…_joint" have the settings of Table 1's and Table 2's ensembles, but train one model for both directions, over
    # shared encoders. The tables' rows are two models trained apart (Section 4.2), whose scores `crossret evaluate
    # --ensemble` averages.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # Table 1
        "f30k_t2i_avg": _T2I_AVG,
        "f30k_t2i_lse": _T2I_LSE,
        "f30k_i2t_lse": {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "lse", "lambda_lse": 5.0},
        "f30k_i2t_avg": _I2T_AVG,
        "f30k_t2i_avg_i2t_lse_joint": {**_T2I_AVG, **_PLUS_I2T_LSE, "i2t_lambda_lse": 5.0},
        # Table 2
        "coco_t2i_lse": _T2I_LSE,
        "coco_t2i_avg": _T2I_AVG,
        "coco_i2t_lse": {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "lse", "lambda_lse": 20.0},
        "coco_i2t_avg": _I2T_AVG,
        "coco_t2i_lse_i2t_avg_joint": {**_T2I_LSE, **_PLUS_I2T_AVG},
        "coco_t2i_avg_i2t_lse_joint": {**_T2I_AVG, **_PLUS_I2T_LSE, "i2t_lambda_lse": 20.0},
        # Table 3
        "f30k_sum_max_t2i": {"cross_attention": "sum_max_t2i"},
        "f30k_sum_max_i2t": {"cross_attention": "sum_max_i2t"},
        # At a size that two cores train in two minutes. All negatives of a batch (Eq. 11) teach it from the first step
        # on; the hardest alone (Eq. 12) leave the loss at its starting point for longer than that lasts.
        "scenes": {**_T2I_AVG, "embed_dim": 256, "word_dim": 64, "negatives": "sum"},
    }
    # Appendix A
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {"epochs": 30, "decay_epochs": (15,), "learning_rate": 2e-4},
        "coco": {"epochs": 20, "decay_epochs": (10,), "learning_rate": 5e-4},
        "scenes": {"epochs": 4, "decay_epochs": (3,), "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lambda_softmax", "lambda_lse", "i2t_lambda_softmax", "i2t_lambda_lse")
        check_at_least(self, 0, "clip_slope", "margin")

    def needed_regions(self) -> tuple[str, int]:
        return "region_count", self.region_count or 1

    @property
    def scored_by_rows(self) -> bool:
        return self.cross_attention != "ensemble"  # an ensemble adds two scores

    def unused(self) -> list[str]:
        attention = ["raw_feature_norm", "clip_slope", "focal", "lambda_softmax", "pooling", "lambda_lse"]
        of_i2t = ["i2t_lambda_softmax", "i2t_pooling", "i2t_lambda_lse"]
        if self.cross_attention in ("sum_max_t2i", "sum_max_i2t"):
            return [*super().unused(), *attention, *of_i2t]
        unused = [*super().unused(), *([] if self.cross_attention == "ensemble" else of_i2t)]
        if not self.raw_feature_norm.startswith("clipped"):
            unused.append("clip_slope")
        if self.raw_feature_norm == "minmax":
            unused += ["lambda_softmax", *(["i2t_lambda_softmax"] if self.cross_attention == "ensemble" else [])]
        if self.pooling not in SHARPENED:
            unused.append("lambda_lse")
        if self.cross_attention == "ensemble" and self.i2t_pooling not in SHARPENED:
            unused.append("i2t_lambda_lse")
        return unused

    def attention_options(self, direction: Literal["t2i", "i2t"]) -> dict[str, Any]:
        """The keyword arguments with which ``crossret_kernels.scan_scores`` computes this direction.

        Raises:
            ValueError: the model does not attend in this direction.
        """
        if self.cross_attention not in (direction, "ensemble"):
            raise ValueError(f"direction {direction!r}: this model's cross_attention is {self.cross_attention!r}")
        prefix = "i2t_" if direction == "i2t" and self.cross_attention == "ensemble" else ""
        return {
            "direction": direction,
            "raw_feature_norm": self.raw_feature_norm,
            "clip_slope": self.clip_slope,
            "focal": self.focal,
            **{name: getattr(self, prefix + name) for name in ("lambda_softmax", "pooling", "lambda_lse")},
        }


# Where only the direction is chosen.
PRESET_OF_CROSS_ATTENTION = {
    "t2i": "f30k_t2i_avg",
    "i2t": "f30k_i2t_avg",
    "ensemble": "f30k_t2i_avg_i2t_lse_joint",
    "sum_max_t2i": "f30k_sum_max_t2i",
    "sum_max_i2t": "f30k_sum_max_i2t",
}
