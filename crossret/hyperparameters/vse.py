"""Hyper-parameters of VSE++, and the settings of its paper by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from crossret.hyperparameters.config import check_at_least, option
from crossret.hyperparameters.model import MOST_LAYERS, ModelConfig, Negatives

Measure: TypeAlias = Literal["cosine", "order"]

_VSE0 = {"image_norm": False, "negatives": "sum"}
_ORDER = {"measure": "order"}

# Schedule of the paper's models with a fixed image encoder, and the defaults of the published train.py.
_SCHEDULE: dict[str, Any] = {"epochs": 30, "decay_epochs": (15,), "learning_rate": 2e-4}


@dataclass(frozen=True)
class VseConfig(ModelConfig):
    """Hyper-parameters of VSE++ (Faghri et al., 2018); the defaults are the paper's VSE++.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``.
        embed_dim: D, length of the joint embedding and of the GRU's state.
        word_dim: length of a word's embedding, the GRU's input.
        text_layers: layers of the GRU.
        image_norm: whether the image's vector is divided by its length; a caption's always is.
        use_abs: whether either vector is of its entries' absolute values, as order embeddings are.
        measure: "cosine", the dot product of image i and caption c, or "order", −‖max(0, c − i)‖₂ (Order++).
        margin: α of the triplet loss.
        negatives: "hardest" (the paper's MH loss), or "sum" over all negatives of the batch (its SH loss).

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = option(1024, "Dimensions in which regions and words meet.", size=True)
    word_dim: int = option(300, "Dimensions of a word's embedding.", size=True)
    text_layers: int = option(1, "Layers of the GRU.", size=True, most=MOST_LAYERS)
    image_norm: bool = option(True, "L2-normalise the image's vector.")
    use_abs: bool = option(False, "Take the absolute values of both vectors.")
    measure: Measure = option("cosine", "How two vectors are compared.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Negatives = option("hardest", "Negatives of the triplet loss.")

    OF_WORDS: ClassVar[tuple[str, ...]] = (*ModelConfig.OF_WORDS, "text_layers")
    kind: ClassVar[str] = "vse"
    # "coco_order" is the one of the paper's order embeddings that is trained as VSE++ is, Order++. Order0 (measure
    # "order", use_abs, margin 0.05, negatives "sum") has a learning rate of its own, 1e-3.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {},
        "f30k_vse0": _VSE0,
        "coco": {},
        "coco_vse0": _VSE0,
        "coco_order": _ORDER,
        "scenes": {"embed_dim": 256, "word_dim": 64, "negatives": "sum"},
    }
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": _SCHEDULE,
        "coco": _SCHEDULE,
        "scenes": {"epochs": 12, "decay_epochs": (10,), "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "margin")

    @property
    def scored_by_rows(self) -> bool:
        return self.measure == "cosine"  # Sum-Max of one row each
