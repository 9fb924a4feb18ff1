"""The options of `train` that are hyper-parameters: the fields of every model's config, by their own names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from crossret.cli.options import given, option, spelling
from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig


def _united(name: str, kinds: Iterable[Any]) -> Any:
    """The type of an option that models have fields of these types of: their own, or all of their choices."""
    first, *others = kinds
    if get_origin(first) is Literal and all(get_origin(kind) is Literal for kind in others):
        return Literal[tuple(dict.fromkeys(choice for kind in (first, *others) for choice in get_args(kind)))]
    if any(kind is not first for kind in others):
        raise TypeError(f"{name}: models disagree about its type")
    return first


def _without_none(kind: Any) -> Any:
    if type(None) not in get_args(kind):
        return kind
    return next(part for part in get_args(kind) if part is not type(None))


def _help(texts: Mapping[str, str]) -> str:
    """What an option means, by the models that have it; those are named unless all do and mean the same."""
    models: dict[str, list[str]] = {}
    for model, text in texts.items():
        models.setdefault(text, []).append(model)
    if list(models.values()) == [list(MODEL_CONFIGS)]:
        return next(iter(models))
    return " ".join(f"{text} [{', '.join(names)}]" for text, names in models.items())


def _options_of(configs: Mapping[str, type[ModelConfig]]) -> type[Any]:
    """A dataclass of the options; None is the preset's value."""
    kinds: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[str, str]] = {}
    for model, config in configs.items():
        hints = get_type_hints(config)
        for field in dataclasses.fields(config):
            if "help" in field.metadata:
                kinds.setdefault(field.name, {})[model] = _without_none(hints[field.name])
                texts.setdefault(field.name, {})[model] = field.metadata["help"]
    fields = [
        (name, Annotated[_united(name, by_model.values()) | None, option(_help(texts[name]))], None)
        for name, by_model in kinds.items()
    ]
    return dataclasses.make_dataclass("HyperParameters", fields)


HyperParameters = _options_of(MODEL_CONFIGS)


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
    return chosen
