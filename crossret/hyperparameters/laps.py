"""Hyper-parameters of LAPS, and the settings of its published code by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from crossret.hyperparameters.config import check_at_least, check_positive, option
from crossret.hyperparameters.model import ModelConfig, Negatives

# A ViT has 196 patches of 224 pixels, a Swin 49: half of them are kept, and aggregated to 0.4 times as many tokens.
_SWIN = {"aggregated": 9}

# The published arguments; its rate falls to 0.3 of itself after epochs 9, 15, 20 and 25, here along a cosine.
_SCHEDULE: dict[str, Any] = {
    "epochs": 30,
    "decay": "cosine",
    "optimizer": "adamw",
    "learning_rate": 2e-4,
    "weight_decay": 1e-4,
}


@dataclass(frozen=True)
class LapsConfig(ModelConfig):
    """Hyper-parameters of LAPS (Fu et al., CVPR 2024); the defaults are those of its published code for a ViT.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``.
        embed_dim: D, length of the embeddings of patches and words.
        word_dim: length of a word's embedding, the GRU's input.
        keep_ratio: share of an image's patches that a caption keeps, rounded up.
        aggregated: tokens that the kept patches are aggregated to.
        global_token: whether the first region of an image is a token of the whole, as [CLS], which all captions keep.
        clip_slope: slope of similarities below zero.
        margin: of the triplet loss.
        negatives: of the triplet loss; the published code takes the sum of all in its first epoch, then the hardest.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = option(512, "Dimensions in which patches and words meet.", size=True)
    word_dim: int = option(300, "Dimensions of a word's embedding.", size=True)
    keep_ratio: float = option(0.5, "Share of an image's patches that a caption keeps.")
    aggregated: int = option(39, "Tokens that the kept patches are aggregated to.", size=True)
    global_token: bool = option(False, "The first region of an image stands for the whole of it.")
    clip_slope: float = option(0.1, "Slope of similarities below zero.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Negatives = option("hardest", "Negatives of the triplet loss.")

    kind: ClassVar[str] = "laps"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {},
        "f30k_swin": _SWIN,
        "coco": {},
        "coco_swin": _SWIN,
        "scenes": {"embed_dim": 128, "word_dim": 64, "aggregated": 4, "keep_ratio": 0.7, "negatives": "sum"},
    }
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": _SCHEDULE,
        "coco": _SCHEDULE,
        "scenes": {"epochs": 4, "decay_epochs": (3,), "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "keep_ratio")
        check_at_least(self, 0, "clip_slope", "margin")
        if self.keep_ratio > 1:
            raise ValueError(f"keep_ratio must be at most 1, not {self.keep_ratio}")

    def needed_regions(self) -> tuple[str, int]:
        return ("global_token", 2) if self.global_token else ("", 1)
