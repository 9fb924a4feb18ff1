"""Hyper-parameters as frozen dataclasses: fields checked on construction, to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossret.files.json import parse_json_object
from crossret.files.numbers import decimal_number, whole_number

ConfigType = TypeVar("ConfigType", bound="Config")

# Sizes beyond any real model are refused, so that no product of two overflows when a stranger's file names them.
LARGEST_SIZE = 2**24

# Other whole numbers are counts of steps, epochs or captions, which are added up in 64 bits.
LARGEST_COUNT = 2**53

# Numbers are computed with in float32. What they multiply, divide and are added up to there must be finite, also in the
# loss of a batch and its gradient, or a training fails at its first step. An inverse temperature of 2²⁴ makes a softmax
# a maximum already: float32 tells cosines apart by no less than 2⁻²⁴.
LARGEST_NUMBER, SMALLEST_POSITIVE = 2.0**24, 2.0**-100
LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127

_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
_READ: dict[Any, Any] = {int: whole_number, float: decimal_number}
_BOOLEANS = {"true": True, "false": False}
NONE = "none"
"""How None is typed, where a field may be it."""


def option(default: Any, text: str, *, size: bool = False, most: float | None = None) -> Any:
    """A field with its default and what it means, which is also the help of the command line's option of its name.

    Args:
        size: whether it is the length of a vector or a count of parts: at least 1.
        most: the largest number that is taken; by default ``LARGEST_SIZE``, of what is no size ``LARGEST_COUNT`` or, of
            floating point, ``LARGEST_NUMBER``.
    """
    return dataclasses.field(default=default, metadata={"help": text, "size": size, "most": most})


def without_none(hint: Any) -> tuple[Any, bool]:
    """The type of a field's values but for None, and whether it may be None."""
    if type(None) not in get_args(hint):
        return hint, False
    (kind,) = (part for part in get_args(hint) if part is not type(None))
    return kind, True


def parse_value(hint: Any, text: str) -> Any:
    """The value of a field of this type as a user types it; a ValueError says what it must be."""
    kind, may_be_none = without_none(hint)
    if may_be_none and text == NONE:
        return None
    if kind is str:
        return text
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"one of {', '.join(get_args(kind))}")
        return text
    if kind is bool:
        if text not in _BOOLEANS:
            raise ValueError("true or false")
        return _BOOLEANS[text]
    try:
        if get_origin(kind) is tuple:
            (part, _) = get_args(kind)
            read = whole_number if part is int else part.parse
            return tuple(map(read, text.split(","))) if text else ()
        return _READ[kind](text)
    except ValueError:
        expected = _NUMBERS.get(kind) or f"{getattr(get_args(kind)[0], 'FORM', 'whole numbers')} between commas"
        raise ValueError(f"{expected} or {NONE}" if may_be_none else expected) from None


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of the hyper-parameter classes.

    Fields are int, float, bool, str, a Literal of strings, one of these or None, or a tuple of any number of int, or of
    configs, which may be given as ``asdict`` has them.

    Raises:
        TypeError: a field has another type than declared; names the field.
        ValueError: a number is not finite or beyond the field's range, for floating point by default ±2²⁴, or a string
            is none of its choices; names the field.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            name = field.name
            value = getattr(self, name)
            hint, may_be_none = without_none(hints[name])
            if value is None and may_be_none:
                continue
            if get_origin(hint) is Literal:
                if value not in get_args(hint):
                    raise ValueError(f"{name} must be one of {', '.join(get_args(hint))}, not {value!r}")
            elif hint is float:
                # bool is an int in Python: True would pass for the number 1.
                if type(value) not in (int, float):
                    raise TypeError(f"{name} must be a number, not {value!r}")
                if not math.isfinite(value if isinstance(value, float) else 0):
                    raise ValueError(f"{name} must be finite, not {value!r}")
                _check_most(field, value, LARGEST_NUMBER)
                object.__setattr__(self, name, float(value))
            elif get_origin(hint) is tuple and issubclass(part := get_args(hint)[0], Config):
                if not isinstance(value, (tuple, list)) or any(not isinstance(each, (part, dict)) for each in value):
                    raise TypeError(f"{name} must be of {part.__name__}, not {value!r}")
                values = (part.from_dict(each) if isinstance(each, dict) else each for each in value)
                object.__setattr__(self, name, tuple(values))
            elif get_origin(hint) is tuple:
                if not isinstance(value, (tuple, list)) or any(type(number) is not int for number in value):
                    raise TypeError(f"{name} must be whole numbers, not {value!r}")
                object.__setattr__(self, name, tuple(value))
            elif type(value) is not hint:
                raise TypeError(f"{name} must be {hint.__name__}, not {value!r}")
            elif hint is int and field.metadata:
                _check_most(field, value, LARGEST_SIZE if field.metadata["size"] else LARGEST_COUNT)

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
        """Config of the parsed object; raises as ``from_json``."""
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


def _check_most(field: dataclasses.Field[Any], value: float, default: float) -> None:
    """Raise a ValueError where a number is larger than the largest that its field takes, or its negative smaller."""
    given = field.metadata.get("most")
    most = default if given is None else given
    if abs(value) > most:
        bound = f"at least {-most:.8g}" if value < 0 else f"at most {most:.8g}"
        shown = f"{value:.8g}" if abs(value) <= sys.float_info.max else "a whole number beyond 1e308"
        raise ValueError(f"{field.name} must be {bound}, not {shown}")


def check_at_least(config: Config, minimum: int, *names: str) -> None:
    """Raise a ValueError that names the first of these fields that is less than ``minimum``."""
    for name in names:
        if getattr(config, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {getattr(config, name)}")


def check_positive(config: Config, *names: str) -> None:
    """Raise a ValueError that names the first of these fields that is not greater than zero, in float32 as well."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise ValueError(f"{name} must be greater than 0, not {value}")
        if value < SMALLEST_POSITIVE:
            raise ValueError(f"{name} must be at least {SMALLEST_POSITIVE:.1e}, not {value}")
