"""Hyper-parameters as frozen dataclasses: fields checked on construction, to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossret.files.json import parse_json_object

ConfigType = TypeVar("ConfigType", bound="Config")

# Sizes beyond any real model are refused, so that no product of two overflows when a stranger's file names them.
LARGEST_SIZE = 2**24


def option(default: Any, text: str, *, size: bool = False, most: int = LARGEST_SIZE) -> Any:
    """A field with its default and what it means, which is also the help of the command line's option of its name.

    Args:
        size: whether it is the length of a vector or a count of parts: at least 1.
        most: the largest such number that is taken.
    """
    return dataclasses.field(default=default, metadata={"help": text, "size": size, "most": most})


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of the hyper-parameter classes.

    Fields are int, float, bool, a Literal of strings, one of these or None, or a tuple of any number of int.

    Raises:
        TypeError: a field has another type than declared; names the field.
        ValueError: a number is not finite, or a string is none of its choices; names the field.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in (field.name for field in dataclasses.fields(self)):
            hint, value = hints[name], getattr(self, name)
            if type(None) in get_args(hint):
                if value is None:
                    continue
                hint = next(kind for kind in get_args(hint) if kind is not type(None))
            if get_origin(hint) is Literal:
                if value not in get_args(hint):
                    raise ValueError(f"{name} must be one of {', '.join(get_args(hint))}, not {value!r}")
            elif hint is float:
                # bool is an int in Python: True would pass for the number 1.
                if type(value) not in (int, float):
                    raise TypeError(f"{name} must be a number, not {value!r}")
                try:
                    number = float(value)
                except OverflowError:
                    raise ValueError(f"{name} must be less than 1e308, not a whole number beyond that") from None
                if not math.isfinite(number):
                    raise ValueError(f"{name} must be finite, not {value!r}")
                object.__setattr__(self, name, number)
            elif get_origin(hint) is tuple:
                if not isinstance(value, (tuple, list)) or any(type(number) is not int for number in value):
                    raise TypeError(f"{name} must be whole numbers, not {value!r}")
                object.__setattr__(self, name, tuple(value))
            elif type(value) is not hint:
                raise TypeError(f"{name} must be {hint.__name__}, not {value!r}")

    def to_json(self) -> str:
        """One JSON object, a key a field."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls: type[ConfigType], text: str) -> ConfigType:
        """The inverse of ``to_json``; a field with a default may be left out.

        Raises:
            ValueError: not JSON, not an object, an unknown or missing key, or a value that the class does not take.
        """
        return cls.from_dict(parse_json_object(text, cls.__name__))

    @classmethod
    def from_dict(cls: type[ConfigType], values: dict[str, Any]) -> ConfigType:
        """As ``from_json``, from the parsed object."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in values:
            if key not in fields:
                raise ValueError(f"{cls.__name__} has no field {key!r}")
        for name, field in fields.items():
            if name not in values and field.default is dataclasses.MISSING:
                raise ValueError(f"{cls.__name__} lacks the field {name!r}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(str(error)) from error


def check_at_least(config: Config, minimum: int, *names: str) -> None:
    """Raise a ValueError that names the first of these fields that is less than ``minimum``."""
    for name in names:
        if getattr(config, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {getattr(config, name)}")


def check_positive(config: Config, *names: str) -> None:
    """Raise a ValueError that names the first of these fields that is not greater than zero."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be greater than 0, not {getattr(config, name)}")
