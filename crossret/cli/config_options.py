"""Options that are the fields of a config, by their own names: hyper-parameters of the models, and how they train."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from crossret.cli.options import given, option, spelling
from crossret.hyperparameters import MODEL_CONFIGS, TrainingConfig
from crossret.hyperparameters.config import NONE, Config, parse_value, without_none

_ONLY_IN_PYTHON = ("parameter_groups",)


def option_name(config: type[Config], field: str) -> str:
    """What the option of a field is called: one that may be repeated is named in the singular."""
    return field.removesuffix("s") if get_origin(get_type_hints(config)[field]) is tuple else field


def _kind(hint: Any) -> Any:
    """The type of the option of a field of this type, but for None."""
    kind, _ = without_none(hint)
    return list[int] if get_origin(kind) is tuple else kind


def _or_none(kind: Any) -> dict[str, Any]:
    """What an option takes of fields that may be None: a value of this type, or the word "none", which stays one."""

    def parse(text: str) -> Any:
        try:
            return text if text == NONE else parse_value(kind | None, text)
        except ValueError as error:
            raise typer.BadParameter(f"must be {error}, not {text!r}") from None

    return {"parser": parse, "metavar": f"<{kind.__name__}|{NONE}>"}


def _fields_of(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields that were typed as these."""
    hints = get_type_hints(config)
    return {name: None if value == NONE and without_none(hints[name])[1] else value for name, value in values.items()}


def _united(name: str, kinds: Iterable[Any]) -> Any:
    """The type of an option that configs have fields of these types of: their own, or all of their choices."""
    first, *others = kinds
    if get_origin(first) is Literal and all(get_origin(kind) is Literal for kind in others):
        return Literal[tuple(dict.fromkeys(choice for kind in (first, *others) for choice in get_args(kind)))]
    if any(kind is not first for kind in others):
        raise TypeError(f"{name}: models disagree about its type")
    return first


def _help(texts: Mapping[str, str], configs: Mapping[str, type[Config]]) -> str:
    """What an option means, by the configs that have it; those are named unless all do and mean the same."""
    named: dict[str, list[str]] = {}
    for name, text in texts.items():
        named.setdefault(text, []).append(name)
    if list(named.values()) == [list(configs)]:
        return next(iter(named))
    return " ".join(f"{text} [{', '.join(names)}]" for text, names in named.items())


def _options_of(name: str, configs: Mapping[str, type[Config]]) -> type[Any]:
    """A dataclass of the options; None is the preset's value."""
    kinds: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[str, str]] = {}
    may_be_none = set()
    for owner, config in configs.items():
        hints = get_type_hints(config)
        for field in dataclasses.fields(config):
            if "help" in field.metadata and field.name not in _ONLY_IN_PYTHON:
                called = option_name(config, field.name)
                kinds.setdefault(called, {})[owner] = _kind(hints[field.name])
                texts.setdefault(called, {})[owner] = field.metadata["help"]
                if without_none(hints[field.name])[1]:
                    may_be_none.add(called)
    fields = []
    for called, by_owner in kinds.items():
        kind = _united(called, by_owner.values())
        taken: dict[str, Any] = {"metavar": "<int>"} if kind == list[int] else {}
        if called in may_be_none:
            taken = _or_none(kind)
        fields.append((called, Annotated[kind | None, option(_help(texts[called], configs), **taken)], None))
    return dataclasses.make_dataclass(name, fields)


def hyperparameters_of(models: Mapping[str, type[Config]]) -> type[Any]:
    """A dataclass of the options of these models, by name; None is the preset's value."""
    return _options_of("HyperParameters", models)


Schedule = _options_of("Schedule", {"training": TrainingConfig})


def chosen_of(model: str, hyperparameters: Any) -> dict[str, Any]:
    """The fields of a model's config that were given, by name.

    Raises a ValueError that names an option and the models that have it where this one has not.
    """
    chosen = given(vars(hyperparameters))
    fields = {kind: {field.name for field in dataclasses.fields(config)} for kind, config in MODEL_CONFIGS.items()}
    for name, value in chosen.items():
        if name not in fields[model]:
            have = [kind for kind in MODEL_CONFIGS if name in fields[kind]]
            raise ValueError(
                f"{spelling(name, value)}: {model} has no such hyper-parameter; "
                f"{' and '.join(have)} {'has' if len(have) == 1 else 'have'}"
            )
    return _fields_of(MODEL_CONFIGS[model], chosen)


def schedule_of(schedule: Any) -> dict[str, Any]:
    """The fields of ``TrainingConfig`` that were given, by name."""
    options = {option_name(TrainingConfig, field.name): field.name for field in dataclasses.fields(TrainingConfig)}
    chosen = {options[name]: value for name, value in given(vars(schedule)).items() if value != []}
    return _fields_of(TrainingConfig, chosen)


def options_of(config: Config) -> dict[str, Any]:
    """The fields of a config that can be typed, as options with their values: the inverse of the two above."""
    told = [field.name for field in dataclasses.fields(config) if "help" in field.metadata]
    typed = [name for name in told if name not in _ONLY_IN_PYTHON]
    values = {option_name(type(config), name): getattr(config, name) for name in typed}
    return {
        name: NONE if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value != ()
    }
