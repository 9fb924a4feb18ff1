"""Hyper-parameters that all models have: sizes of the input, presets, and what an option means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from crossret.hyperparameters.config import Config, check_at_least, check_positive, option
from crossret.hyperparameters.training import TrainingConfig

Loss: TypeAlias = Literal["triplet", "infonce", "sigmoid"]
Negatives: TypeAlias = Literal["hardest", "sum"]
Pooling: TypeAlias = Literal["lse", "avg", "sum", "max", "softmax"]
SHARPENED = "lse", "softmax"  # poolings with a λ₂

MOST_LAYERS, MOST_HEADS = 256, 1024

# Words of a caption: of 128 captions of so many words one activation of 1,024 dimensions has 512 MiB in float32.
# Flickr30K's longest has 82.
MOST_WORDS = 1024
LARGEST_SCALE = 100.0  # InfoNCE's: CLIP, Section 2.5

ConfigType = TypeVar("ConfigType", bound="ModelConfig")


@dataclass(frozen=True)
class ModelConfig(Config):
    """Hyper-parameters of every model: the sizes of its input, and what it reads of it.

    Attributes:
        image_dim: length of a region's feature.
        vocabulary_size: number of words; 0 of a model that reads tokens.
        text_dim: length of a token of a caption, which a pretrained encoder of texts made; None of a model that reads
            words, whose embeddings it learns.
        max_words: the model reads so many first words of a caption; None is all of them. <start> and <end> are not
            counted, and are always read. Of a model that reads tokens it counts these.
        freeze_words: whether the word embeddings stay as they start, from vectors that others trained or another model.
        loss: of the scores of a batch: "triplet", the paper's, by the fields ``OF_TRIPLETS``; "infonce", cross
            entropies of the softmaxes of rows and of columns, with a learnable temperature (CLIP); or "sigmoid", of
            every pair, with a learnable scale and bias (SigLIP). The latter two are means over the batch.
        label_smoothing: the share of the target of "infonce" that goes to all pairs.
        loss_scale: scale that "infonce" and "sigmoid" start from; None is 1 / 0.07 and 10.
        loss_bias: bias that "sigmoid" starts from.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    image_dim: int = dataclasses.field(metadata={"size": True})
    vocabulary_size: int = dataclasses.field(metadata={"size": True})
    text_dim: int | None = dataclasses.field(default=None, metadata={"size": True})
    max_words: int | None = option(None, "Read a caption's first words only.", size=True)
    freeze_words: bool = option(False, "Keep the word embeddings as they start.")
    loss: Loss = option("triplet", "Loss of the scores.")
    label_smoothing: float = option(0.0, "Share of infonce's target that goes to all pairs.")
    loss_scale: float | None = option(None, "Scale that infonce and sigmoid start from; 1 / 0.07 and 10 by default.")
    loss_bias: float = option(-10.0, "Bias that sigmoid starts from.")

    OF_TRIPLETS: ClassVar[tuple[str, ...]] = ("margin", "negatives", "p")
    """Fields of the triplet loss, as far as a model has them."""
    OF_WORDS: ClassVar[tuple[str, ...]] = ("word_dim", "freeze_words")
    """Fields of what reads words, which a model that reads tokens has not."""
    kind: ClassVar[str]
    """The model's name on the command line and in its files."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The paper's settings, and "scenes" for rendered scenes: fields by preset. The first is the default."""
    schedules: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Fields of ``TrainingConfig`` by what a preset's name begins with: the data set that it was set for."""

    keeps_regions: ClassVar[bool] = False
    """Whether the rows of an encoded image are its regions as they came."""

    @property
    def scored_by_rows(self) -> bool:
        """Whether the kernels' scores of encoded rows, by options of the caller's choice, can be this model's."""
        return False

    @property
    def most_words(self) -> int:
        """Words that it can read of a caption, <start> and <end> not counted; ``max_words`` cuts longer ones."""
        return MOST_WORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("size") and value is not None:
                check_at_least(self, 0 if self.text_dim and field.name == "vocabulary_size" else 1, field.name)
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, not {self.label_smoothing}")
        if self.loss_scale is not None:
            check_positive(self, "loss_scale")
            if self.loss == "infonce" and self.loss_scale > LARGEST_SCALE:
                raise ValueError(f"loss_scale must be at most {LARGEST_SCALE:g} with infonce, not {self.loss_scale}")
        if self.text_dim and self.vocabulary_size:
            raise ValueError(f"vocabulary_size must be 0 where text_dim says tokens, not {self.vocabulary_size}")

    @classmethod
    def preset(cls: type[ConfigType], name: str, **fields: Any) -> ConfigType:
        """The setting of this name, with ``fields`` set or replaced.

        Raises:
            ValueError: no preset has this name.
        """
        cls._check_preset(name)
        return cls(**{**cls.presets[name], **fields})

    @classmethod
    def schedule(cls, preset: str, **fields: Any) -> TrainingConfig:
        """How the model of a preset is trained, with ``fields`` set or replaced.

        Raises:
            ValueError: no preset has this name.
        """
        cls._check_preset(preset)
        return TrainingConfig(**{**cls.schedules[preset.split("_")[0]], **fields})

    def needed_regions(self) -> tuple[str, int]:
        """How many regions every image must have, behind the name of the field that says so."""
        return "", 1

    def unused(self) -> list[str]:
        """The fields that make no difference to this model, because of what other fields say."""
        unused = [] if self.loss == "triplet" else [name for name in self.OF_TRIPLETS if hasattr(self, name)]
        others = {"label_smoothing": ("infonce",), "loss_scale": ("infonce", "sigmoid"), "loss_bias": ("sigmoid",)}
        unused += [name for name, losses in others.items() if self.loss not in losses]
        return unused if self.text_dim is None else [*unused, *self.OF_WORDS]

    @classmethod
    def _check_preset(cls, name: str) -> None:
        if name not in cls.presets:
            raise ValueError(f"preset must be one of {', '.join(cls.presets)}, not {name!r}")
