"""What the hyper-parameters of every model have in common: sizes of the input, presets, and what an option means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from crossret.hyperparameters.config import LARGEST_SIZE, Config, check_at_least
from crossret.hyperparameters.training import TrainingConfig

Negatives: TypeAlias = Literal["hardest", "sum"]
Pooling: TypeAlias = Literal["lse", "avg", "sum", "max"]

MOST_LAYERS = 256

ConfigType = TypeVar("ConfigType", bound="ModelConfig")


@dataclass(frozen=True)
class ModelConfig(Config):
    """What every model's hyper-parameters begin with: the sizes of its input.

    Attributes:
        image_dim: length of a region's feature.
        vocabulary_size: number of words.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    image_dim: int = dataclasses.field(metadata={"size": True})
    vocabulary_size: int = dataclasses.field(metadata={"size": True})

    kind: ClassVar[str]
    """The model's name on the command line and in its files."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The paper's settings, and "scenes" for rendered scenes: fields by preset. The first is the default."""
    schedules: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Fields of ``TrainingConfig`` by what a preset's name begins with: the data set that it was set for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("size") and value is not None:
                check_at_least(self, 1, field.name)
            most = field.metadata.get("most", LARGEST_SIZE)
            if type(value) is int and value > most:
                raise ValueError(f"{field.name} must be at most {most}, not {value}")

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

    def unused(self) -> list[str]:
        """The fields that make no difference to this model, because of what other fields say."""
        return []

    @classmethod
    def _check_preset(cls, name: str) -> None:
        if name not in cls.presets:
            raise ValueError(f"preset must be one of {', '.join(cls.presets)}, not {name!r}")
