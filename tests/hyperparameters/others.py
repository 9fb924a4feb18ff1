"""Configs that differ from their defaults, so that a field that is lost on its way is noticed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from functools import reduce
from typing import TypeVar, get_args, get_type_hints

from crossret.hyperparameters import ParameterGroup
from crossret.hyperparameters.config import Config, without_none

AnyConfig = TypeVar("AnyConfig", bound=Config)
_VALUES = (False, True, 2, 1, 64, 0.5, 0.25, (1, 2), (ParameterGroup("text", 0.5, 0.25),))


def with_another(config: AnyConfig, name: str) -> AnyConfig:
    """The config with another valid value of one field."""
    choices = get_args(without_none(get_type_hints(type(config))[name])[0])
    for value in (*choices, *_VALUES):
        with suppress(TypeError, ValueError):
            other = replace(config, **{name: value})
            if getattr(other, name) != getattr(config, name):
                return other
    raise AssertionError(f"there is no other {name}")


def without_defaults(config: AnyConfig) -> AnyConfig:
    """The config with all fields changed that have their defaults."""
    names = [each.name for each in fields(config) if getattr(config, each.name) == each.default]
    return reduce(with_another, names, config)
