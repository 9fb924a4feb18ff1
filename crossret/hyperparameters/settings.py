"""The settings of a model and its training as they are typed: a model, a preset, and field=value of either.

This is the one language of `crossret train --set`, `crossret compare`, run.toml and the benchmarks' ablations.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret.hyperparameters.config import NONE, Config, parse_value
from crossret.hyperparameters.scan import PRESET_OF_CROSS_ATTENTION

_PRESET = "preset="
AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a model, as typed.

    Attributes:
        model: the model's name in ``MODEL_CONFIGS``.
        preset: the setting that the rest is taken from.
        fields, schedule: replaced values of the model's config and of its ``TrainingConfig``.
        typed: these values as "field=value", the model's first, in the order of the configs.
    """

    model: str
    preset: str
    fields: Mapping[str, Any]
    schedule: Mapping[str, Any]
    typed: tuple[str, ...]

    def config(self, **of_data: Any) -> ModelConfig:
        """The model's hyper-parameters, with those that the training data decide (``fields_of_data``).

        Raises:
            ValueError: a field is out of its range or makes no difference; names it.
        """
        return self._used(MODEL_CONFIGS[self.model].preset(self.preset, **of_data, **self.fields))

    def changed(self, config: AnyConfig) -> AnyConfig:
        """A trained model's hyper-parameters with the fields replaced; raises as ``config``."""
        return self._used(dataclasses.replace(config, **self.fields))

    def training(self, **others: Any) -> TrainingConfig:
        """How the model is trained; ``others`` stand where nothing was typed.

        Raises:
            ValueError: a field is out of its range; names it.
        """
        return MODEL_CONFIGS[self.model].schedule(self.preset, **{**others, **self.schedule})

    def with_defaults(self, texts: Iterable[str]) -> Settings:
        """These settings, with others where nothing was typed."""
        return parse_settings(self.model, self.preset, overlaid(texts, self.typed))

    def _used(self, config: AnyConfig) -> AnyConfig:
        check_used(config, self.fields)
        return config


def parse_settings(model: str, preset: str | None, texts: Iterable[str]) -> Settings:
    """The settings of a model that are typed so.

    Values are whole numbers, numbers, true or false, choices, none, or whole numbers between commas, as the field is
    declared.

    Args:
        model: its name.
        preset: the setting to start from; by default the model's first, of scan that of its ``cross_attention``.
        texts: each a "field=value", or several between spaces.

    Raises:
        ValueError: no such model, preset or field, a field is set twice, or a value has another type; names it.
    """
    if model not in MODEL_CONFIGS:
        raise ValueError(f"the model must be one of {', '.join(MODEL_CONFIGS)}, not {model!r}")
    config = MODEL_CONFIGS[model]
    own, of_training = settable(config), settable(TrainingConfig)
    kinds = {**own, **of_training}
    typed: dict[str, str] = {}
    values: dict[str, Any] = {}
    for text in (word for several in texts for word in several.split()):
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form field=value")
        if name not in kinds:
            raise ValueError(f"{name}: {model} has no such setting{_hint(name, kinds)}")
        if name in typed:
            raise ValueError(f"{name} is set twice")
        try:
            values[name] = parse_value(kinds[name], value)
        except ValueError as error:
            raise ValueError(f"{name} must be {error}, not {value!r}") from None
        typed[name] = value
    fields = {name: values[name] for name in own if name in values}
    preset = default_preset(model, fields) if preset is None else preset
    config.schedule(preset)  # which says whether there is one
    return Settings(
        model,
        preset,
        fields,
        {name: values[name] for name in of_training if name in values},
        tuple(f"{name}={typed[name]}" for name in kinds if name in typed),
    )


def parse_variant(text: str, preset: str) -> tuple[str, Settings]:
    """The settings of a text such as "han", "han layers=3 p=4" or "oan preset=f30k_no_inter epochs=6", and its name.

    Args:
        text: the model's name, and what ``parse_settings`` takes; perhaps a preset.
        preset: the preset, unless the text has one.

    Returns:
        (name, settings): the name is the text in one order of fields; two variants of one name are the same.

    Raises:
        ValueError: as ``parse_settings`` and, but for the sizes of data, ``Settings``; names the variant.
    """
    model, *words = text.split() or [""]
    own = [word for word in words if word.startswith(_PRESET)]
    try:
        if len(own) > 1:
            raise ValueError("preset is set twice")
        chosen = own[0].removeprefix(_PRESET) if own else preset
        settings = parse_settings(model, chosen, [word for word in words if word not in own])
        settings.config(image_dim=1, vocabulary_size=1)
        settings.training()
    except (TypeError, ValueError) as error:
        raise ValueError(f"variant {text!r}: {error}") from None
    return " ".join([model, *own, *settings.typed]), settings


def default_preset(model: str, fields: Mapping[str, Any]) -> str:
    """Where none is named: a model's first preset, of scan that of the ``cross_attention`` among ``fields``."""
    if model == "scan":
        return PRESET_OF_CROSS_ATTENTION[fields.get("cross_attention", "t2i")]
    return next(iter(MODEL_CONFIGS[model].presets))


def settable(config: type[Config]) -> dict[str, Any]:
    """The types of the fields that may be typed, by name: those that say what they mean."""
    hints = get_type_hints(config)
    return {field.name: hints[field.name] for field in dataclasses.fields(config) if "help" in field.metadata}


def texts_of(config: Config) -> list[str]:
    """All that can be typed of a config, as it is typed, but for what makes no difference."""
    unused = config.unused() if isinstance(config, ModelConfig) else []
    return [f"{name}={spelt(getattr(config, name))}" for name in settable(type(config)) if name not in unused]


def overlaid(texts: Iterable[str], others: Iterable[str]) -> list[str]:
    """Settings with others in the place of those of the same fields."""
    words, added = ([word for several in each for word in several.split()] for each in (texts, others))
    replaced = {word.partition("=")[0] for word in added}
    return [*(word for word in words if word.partition("=")[0] not in replaced), *added]


def spelt(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return NONE if value is None else str(value)


def check_used(
    config: ModelConfig,
    given: Iterable[str],
    spell: Callable[[str, Any], str] = lambda name, value: f"{name}={spelt(value)}",
) -> None:
    """Raise a ValueError that names the first of these fields that a model would ignore, and what would change that.

    Args:
        given: names of fields.
        spell: a choice as it is typed.
    """
    given = list(given)
    for name in config.unused():
        if name in given:
            remedies = [spell(*choice) for choice in _remedies(config, name)]
            reader = f"this {config.kind}"
            if config.text_dim is not None and name in config.OF_WORDS:
                reader += ", which reads tokens of captions"
            message = f"{spell(name, getattr(config, name))} makes no difference to {reader}: leave it out"
            raise ValueError(f"{message}, or choose {' or '.join(remedies)}" if remedies else message)


def _remedies(config: ModelConfig, unused: str) -> list[tuple[str, Any]]:
    """Choices of other fields, each of which alone would make an unused field count."""
    found = []
    for name, kind in settable(type(config)).items():
        for choice in (False, True) if kind is bool else get_args(kind) if get_origin(kind) is Literal else ():
            with suppress(TypeError, ValueError):  # a choice that other fields exclude
                if unused not in dataclasses.replace(config, **{name: choice}).unused():
                    found.append((name, choice))
    return found


def _hint(name: str, kinds: Iterable[str]) -> str:
    """Which models have a setting, or which one may be meant."""
    if have := [model for model, config in MODEL_CONFIGS.items() if name in settable(config)]:
        return f"; {' and '.join(have)} {'has' if len(have) == 1 else 'have'}"
    meant = difflib.get_close_matches(name.replace("-", "_"), kinds, n=1)
    return f"; did you mean {meant[0]}?" if meant else ""
