"""Hyper-parameters of SMAN, and the settings of its paper by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from crossret.hyperparameters.config import check_at_least, option
from crossret.hyperparameters.model import ModelConfig, Negatives

# Table III: intra-modal attention in one step, with the location memory, in two steps, and the multi-modal gate without
# the intra-pair loss ("inter").
_IM = {"location": False, "levels": 2}
_IM_LOC = {"levels": 2}
_SIM = {"alpha": 1.0}
_INTER = {"intra_pair_weight": 0.0}

# Section IV-A.3; Adadelta's "momentum 0.9" is the decay of its averages.
_SCHEDULE: dict[str, Any] = {
    "epochs": 60,
    "decay_epochs": (50,),
    "optimizer": "adadelta",
    "learning_rate": 0.05,
    "weight_decay": 5e-4,
    "gradient_norm": 0.1,
}


@dataclass(frozen=True)
class SmanConfig(ModelConfig):
    """Hyper-parameters of SMAN (Ji et al.); the defaults are the paper's full model.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``.
        embed_dim: length of every hidden vector: GRU and LSTM states, attention, the common space.
        word_dim: length of a word's embedding, the LSTM's input.
        dropout: share of the input that training leaves out: of regions and of words' embeddings or tokens.
        location: whether v⁽⁰⁾ has the location memory beside the global one (Eqs. 3, 4).
        levels: 3, or 2 for the variants whose intra-modal attention is the last step (SMAN-IM, SMAN-IM-LOC).
        alpha: α of the fusion gate (Eq. 12); 1 keeps the other modality out (SMAN-SIM).
        margin: m₁ of the triplet loss (Eq. 21).
        negatives: of the triplet loss.
        intra_pair_margin, intra_pair_weight: m₂ of Eq. 22 and λ of Eq. 23; without weight, SMAN-inter.
        spatial_order: whether the location memory reads regions in the order of their boxes, which all data must then
            have, or as they come; ``crossret train`` sets it by the training data. None reads the boxes of data that
            have them.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = option(512, "Dimensions in which regions and words meet.", size=True)
    word_dim: int = option(512, "Dimensions of a word's embedding.", size=True)
    dropout: float = option(0.3, "Share of the input that training leaves out.")
    location: bool = option(True, "Read the regions in spatial order, too, or only average them.")
    levels: int = option(3, "Levels of context vectors: 3, or 2 without the multi-modal step.", size=True)
    alpha: float = option(0.9, "Share of the own modality in the fusion gate; 1 is all.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Negatives = option("hardest", "Negatives of the triplet loss.")
    intra_pair_margin: float = option(0.25, "Distance that a matching pair may have.")
    intra_pair_weight: float = option(1.0, "Weight of the intra-pair loss; 0 is SMAN-inter.")

    spatial_order: bool | None = None

    kind: ClassVar[str] = "sman"
    keeps_regions: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {},
        "f30k_im": _IM,
        "f30k_im_loc": _IM_LOC,
        "f30k_sim": _SIM,
        "f30k_inter": _INTER,
        "coco": {},
        "coco_im": _IM,
        "coco_im_loc": _IM_LOC,
        "coco_sim": _SIM,
        "coco_inter": _INTER,
        "scenes": {"embed_dim": 128, "word_dim": 64, "dropout": 0.0, "negatives": "sum"},
    }
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": _SCHEDULE,
        "coco": _SCHEDULE,
        "scenes": {"epochs": 5, "decay_epochs": (4,), "batch_size": 64, "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "dropout", "alpha", "margin", "intra_pair_margin", "intra_pair_weight")
        if self.dropout >= 1:
            raise ValueError(f"dropout must be less than 1, not {self.dropout}")
        if self.alpha > 1:
            raise ValueError(f"alpha must be at most 1, not {self.alpha}")
        if self.levels not in (2, 3):
            raise ValueError(f"levels must be 2 or 3, not {self.levels}")

    def unused(self) -> list[str]:
        unused = [*super().unused(), *(["alpha"] if self.levels == 2 else [])]
        return [*unused, "intra_pair_margin"] if self.intra_pair_weight == 0 else unused
