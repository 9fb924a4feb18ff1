"""Variants of models as they are typed: a model's name, perhaps with fields of its config or its schedule set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret.hyperparameters.config import parse_value

_PRESET = "preset"


@dataclass(frozen=True)
class Variant:
    """A model with some of a preset's fields replaced.

    Attributes:
        name: the variant as it is typed, its fields in the order of the config: two variants of one name are the same.
        model: the model's name in ``MODEL_CONFIGS``.
        preset: the setting that the rest is taken from.
        fields, schedule: what is replaced, of the model's config and of its ``TrainingConfig``.
    """

    name: str
    model: str
    preset: str
    fields: dict[str, Any]
    schedule: dict[str, Any]

    def config(self, **of_data: Any) -> ModelConfig:
        """The model's hyper-parameters, those that the training data decide given (``fields_of_data``).

        Raises:
            ValueError: a field is out of its range or makes no difference; names the variant and the field.
        """
        try:
            config = MODEL_CONFIGS[self.model].preset(self.preset, **of_data, **self.fields)
        except (TypeError, ValueError) as error:
            raise self._mistake(str(error)) from error
        for name in config.unused():
            if name in self.fields:
                raise self._mistake(f"{name} makes no difference to this {self.model}")
        return config

    def training(self, seed: int, epochs: int | None) -> TrainingConfig:
        """How the model is trained; ``epochs`` replaces the preset's, where the variant does not set its own.

        Raises:
            ValueError: a field is out of its range; names the variant and the field.
        """
        fields = {"seed": seed, **({} if epochs is None else {"epochs": epochs}), **self.schedule}
        try:
            return MODEL_CONFIGS[self.model].schedule(self.preset, **fields)
        except (TypeError, ValueError) as error:
            raise self._mistake(str(error)) from error

    def _mistake(self, problem: str) -> ValueError:
        return ValueError(f"variant {self.name!r}: {problem}")


def parse_variant(text: str, preset: str) -> Variant:
    """The variant of a text such as "han", "han layers=3 p=4" or "oan preset=f30k_no_inter epochs=6".

    Values are whole numbers, numbers, true or false, choices, none, or whole numbers between commas, as the field is
    declared. The seed is no field: one serves all variants.

    Args:
        text: the model's name and ``field=value`` in any order, between spaces.
        preset: the preset, unless the text has one.

    Raises:
        ValueError: there is no such model or field, a field is set twice, or a value has another type; names the
            variant and the field.
    """
    model, *settings = text.split() or [""]
    if model not in MODEL_CONFIGS:
        raise ValueError(f"variant {text!r}: the model must be one of {', '.join(MODEL_CONFIGS)}, not {model!r}")
    own, scheduled = _fields_of(model)
    kinds = {_PRESET: str, **own, **scheduled}
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"variant {text!r}: {setting!r} is not of the form field=value")
        if name not in kinds:
            raise ValueError(f"variant {text!r}: {model} has no field {name!r}")
        if name in values:
            raise ValueError(f"variant {text!r}: {name} is set twice")
        try:
            values[name] = parse_value(kinds[name], value)
        except ValueError as error:
            raise ValueError(f"variant {text!r}: {name} must be {error}, not {value!r}") from None
    given = dict(setting.partition("=")[::2] for setting in settings)
    name = " ".join([model, *(f"{field}={given[field]}" for field in kinds if field in given)])
    return Variant(
        name,
        model,
        values.get(_PRESET, preset),
        {field: values[field] for field in own if field in values},
        {field: values[field] for field in scheduled if field in values},
    )


def _fields_of(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The types of the fields that may be set: of a model's config, and of its schedule."""
    config = MODEL_CONFIGS[model]
    hints, scheduled = get_type_hints(config), get_type_hints(TrainingConfig)
    own = {field.name: hints[field.name] for field in dataclasses.fields(config) if "help" in field.metadata}
    del scheduled["seed"]
    return own, scheduled
