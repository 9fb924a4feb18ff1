"""Hyper-parameters of MHSAN, and the settings of its paper by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from crossret.hyperparameters.config import check_at_least, option
from crossret.hyperparameters.model import MOST_LAYERS, ModelConfig, Negatives

# Section 3.5: the image's projection alone for 4 epochs, then the text for 15, then everything.
_STAGES = {"text_from_epoch": 4, "image_from_epoch": 19}

# Section 3.5; the published code trains batches of 160 and clips no gradient.
_SCHEDULE: dict[str, Any] = {
    "epochs": 59,
    "decay_epochs": (4, 19),
    "batch_size": 160,
    "learning_rate": 5e-3,
    "gradient_norm": None,
}


@dataclass(frozen=True)
class MhsanConfig(ModelConfig):
    """Hyper-parameters of MHSAN (Park et al.); the defaults are the paper's ten heads.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``; with a backbone, image_dim is the number of
            channels of its feature map.
        feature_dim: d, to which region features are mapped, and length of the text's states.
        embed_dim: d′, length of the joint embedding.
        word_dim: length of a word's embedding; the paper's are Skip-Thoughts' 620 numbers, which the published code
            keeps as they are: ``freeze_words``.
        attention_dim: d_a, hidden units of the attention.
        heads: r, attention heads of either side (Table 4).
        dropout: of what the attention's perceptron and the projection to the joint space take.
        text_layers: layers of the SRU.
        bidirectional: SRUs both ways, of half as many states each, or forward only.
        text_dropout: between the SRU's layers.
        margin: α of the triplet loss (Eq. 4).
        negatives: of the triplet loss, which is averaged over the batch.
        diversity_weight: λ of Eq. 3.
        diversity_squared: whether the norm of Eq. 5 is squared, as printed; Table 5's figures are of the plain norm.
        text_from_epoch, image_from_epoch: epochs, from 0, from which the text and what comes before the image's
            projection are trained; the projection always is.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    feature_dim: int = option(2400, "Dimensions of the features that the heads attend to.", size=True)
    embed_dim: int = option(2400, "Dimensions in which regions and words meet.", size=True)
    word_dim: int = option(620, "Dimensions of a word's embedding.", size=True)
    attention_dim: int = option(350, "Hidden units of the attention.", size=True)
    heads: int = option(10, "Attention heads of either side.", size=True)
    dropout: float = option(0.5, "Share of numbers that training leaves out ahead of attention and projection.")
    text_layers: int = option(4, "Layers of the SRU.", size=True, most=MOST_LAYERS)
    bidirectional: bool = option(False, "Read captions both ways, or forward only.")
    text_dropout: float = option(0.25, "Share of states that training leaves out between layers of the SRU.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Negatives = option("hardest", "Negatives of the triplet loss.")
    diversity_weight: float = option(0.1, "Weight of the diversity loss.")
    diversity_squared: bool = option(False, "Square the norm of the diversity loss, as the paper prints it.")
    text_from_epoch: int = option(0, "Epochs before the text is trained.")
    image_from_epoch: int = option(0, "Epochs before the image is trained ahead of its projection.")

    OF_WORDS: ClassVar[tuple[str, ...]] = (*ModelConfig.OF_WORDS, "text_layers", "bidirectional", "text_dropout")
    kind: ClassVar[str] = "mhsan"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": {**_STAGES, "bidirectional": True},  # Table 2's footnote
        "f30k_5_heads": {**_STAGES, "heads": 5},
        "f30k_1_head": {**_STAGES, "heads": 1},
        "coco": _STAGES,
        "coco_5_heads": {**_STAGES, "heads": 5},
        "coco_1_head": {**_STAGES, "heads": 1},
        "scenes": {
            "feature_dim": 256,
            "embed_dim": 512,
            "word_dim": 64,
            "attention_dim": 128,
            "dropout": 0.0,
            "text_layers": 2,
            "bidirectional": True,
            "text_dropout": 0.0,
            "negatives": "sum",
        },
    }
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": _SCHEDULE,
        "coco": _SCHEDULE,
        "scenes": {"epochs": 6, "decay_epochs": (5,), "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            self, 0, "dropout", "text_dropout", "margin", "diversity_weight", "text_from_epoch", "image_from_epoch"
        )
        for name in ("dropout", "text_dropout"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be less than 1, not {getattr(self, name)}")
        if self.bidirectional and self.feature_dim % 2:
            raise ValueError(f"feature_dim must be even for both ways of reading, not {self.feature_dim}")

    def unused(self) -> list[str]:
        unused = [*super().unused(), *(["diversity_squared"] if self.diversity_weight == 0 else [])]
        return [*unused, *(["text_dropout"] if self.text_layers == 1 else [])]
