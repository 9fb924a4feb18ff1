"""Hyper-parameters of HAN, and the settings of its paper by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from crossret.hyperparameters.config import check_at_least, check_positive, option
from crossret.hyperparameters.model import MOST_LAYERS, ModelConfig

# Section 4.1.
_SCHEDULE: dict[str, Any] = {"epochs": 20, "decay_epochs": (10,), "batch_size": 64, "learning_rate": 1e-4}

BERT_POSITIONS = 512  # for the text encoder transformer, <start> and <end> included


@dataclass(frozen=True)
class HanConfig(ModelConfig):
    """Hyper-parameters of HAN (Yu et al., SIGIR 2021); the defaults are the paper's with one layer.

    Attributes:
        image_dim, vocabulary_size, text_dim, max_words: as ``ModelConfig``.
        embed_dim: D, length of region and word embeddings.
        word_dim: length of a word's embedding, the GRU's input.
        text_encoder: "gru", bidirectional, or "transformer" (Table 7).
        transformer_layers, transformer_heads: of that text encoder; heads divide embed_dim. The paper's has BERT's 12
            layers.
        clusters: centres that stand for an image's regions (Table 3), found by k-means, of a split in the
            precomputed-feature format once and for all; None takes the regions, or centres that
            ``crossret cluster-regions`` has stored.
        layers: heterogeneous attention layers, 0 to 4 in the paper (Table 6).
        heads: of a layer (Table 5); they divide embed_dim.
        lambda_attention: β of a layer's attention, 1 where the logits are plain products. The paper prints neither β.
        matching: "local", of words with regions, or "global", of one vector a side (Table 9).
        direction: who attends in the matching: "t2i", words to regions, or "i2t".
        lambda_softmax: β of the matching's attention.
        margin: μ of the triplet loss.
        negatives, p: "softmax" is Eq. 4 with p; "sum" and "hardest" are Eqs. 2 and 3, its ends.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = option(512, "Dimensions in which regions and words meet.", size=True)
    word_dim: int = option(300, "Dimensions of a word's embedding.", size=True)
    text_encoder: Literal["gru", "transformer"] = option("gru", "What reads the captions.")
    transformer_layers: int = option(12, "Layers of the text encoder transformer.", size=True, most=MOST_LAYERS)
    transformer_heads: int = option(8, "Heads of the text encoder transformer.", size=True)
    clusters: int | None = option(
        None, "Replace an image's regions by so many centres of k-means; none keeps them.", size=True
    )
    layers: int = option(1, "Heterogeneous attention layers; may be 0.", most=MOST_LAYERS)
    heads: int = option(4, "Heads of a heterogeneous attention layer.", size=True)
    lambda_attention: float = option(1.0, "Inverse temperature of the layers' attention.")
    matching: Literal["local", "global"] = option("local", "Match words with regions, or one vector a side.")
    direction: Literal["t2i", "i2t"] = option("t2i", "Who attends in the matching.")
    lambda_softmax: float = option(9.0, "Inverse temperature of the attention.")
    margin: float = option(0.2, "Margin of the triplet loss.")
    negatives: Literal["hardest", "sum", "softmax"] = option("softmax", "Negatives of the triplet loss.")
    p: float = option(8.0, "Order of the soft-max triplet loss.")

    OF_WORDS: ClassVar[tuple[str, ...]] = (
        *ModelConfig.OF_WORDS, "text_encoder", "transformer_layers", "transformer_heads",
    )  # fmt: skip
    kind: ClassVar[str] = "han"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # Section 4.1 has p = 8 and one layer on Flickr30K, p = 4 and three layers on MS-COCO.
        "f30k": {"clusters": 32},
        "coco": {"clusters": 32, "layers": 3, "p": 4.0},
        "f30k_global": {"clusters": 32, "matching": "global"},
        "coco_global": {"clusters": 32, "matching": "global"},
        "scenes": {"embed_dim": 64, "word_dim": 64},
    }
    schedules: ClassVar[dict[str, dict[str, Any]]] = {
        "f30k": _SCHEDULE,
        "coco": _SCHEDULE,
        "scenes": {"epochs": 2, "decay_epochs": (1,), "batch_size": 16, "learning_rate": 1e-3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "layers", "margin")
        check_at_least(self, 1, "p")
        check_positive(self, "lambda_attention", "lambda_softmax")
        if self.matching == "global" and not self.layers:
            raise ValueError(
                "layers must be at least 1 for global matching, whose vectors start the same for all items"
            )
        if self.layers and self.embed_dim % self.heads:
            raise ValueError(f"heads must divide embed_dim: {self.heads} does not divide {self.embed_dim}")
        if self.text_dim is None and self.text_encoder == "transformer" and self.embed_dim % self.transformer_heads:
            raise ValueError(
                f"transformer_heads must divide embed_dim: {self.transformer_heads} does not divide {self.embed_dim}"
            )

    @property
    def most_words(self) -> int:
        of_words = self.text_dim is None and self.text_encoder == "transformer"
        return BERT_POSITIONS - 2 if of_words else super().most_words

    def needed_regions(self) -> tuple[str, int]:
        return "clusters", self.clusters or 1

    def unused(self) -> list[str]:
        unused = super().unused()
        unused += [] if self.text_encoder == "transformer" else ["transformer_layers", "transformer_heads"]
        unused += [] if self.layers else ["heads", "lambda_attention"]
        unused += [] if self.matching == "local" else ["direction", "lambda_softmax"]
        return [*unused, *([] if self.negatives == "softmax" or "p" in unused else ["p"])]
