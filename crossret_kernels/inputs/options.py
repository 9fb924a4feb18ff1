"""Checks on the options of every operation: one clear error that names the argument."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch.compiler import is_compiling

DIRECTIONS = ("t2i", "i2t")
# Of what the kernels compute with.
FLOAT32_MAX = torch.finfo(torch.float32).max
FLOAT32_TINY = torch.finfo(torch.float32).tiny

Options = TypeVar("Options")


class Coded:
    """Options that carry themselves as operations in csrc take them.

    Attributes:
        codes: what operations take.
    """

    codes: tuple[Any, ...]  # names as their places among all; no field of theirs

    def carry(self, *codes: Any) -> None:
        object.__setattr__(self, "codes", codes)  # they are frozen


class Directed(Coded):
    """Options of scores that have a direction."""

    direction: str


def checked(kind: Callable[..., Options], *values: Any) -> Options:
    """`kind` of these values: immutable options, whose checks cost as much as a small score and so run once."""
    if is_compiling():  # which does not know caches
        return kind(*values)
    try:
        options: Options = _kept(kind, *values)
    except TypeError:  # a value that is no key, or that the checks refuse: they tell, and of no other error
        pass
    else:
        return options
    return kind(*values)


@lru_cache(typed=True)  # 1 is no flag, and equals True
def _kept(kind: Callable[..., Any], *values: Any) -> Any:
    return kind(*values)


def choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ValueError naming the argument where `value` is none of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def check_number(name: str, value: Any) -> float:
    """The number as a float: torch takes neither fractions nor integers beyond 64 bits.

    Raises TypeError or ValueError naming the argument where `value` is no finite number of float32.
    """
    # Floats first, as the abstract class answers slowly.
    number = type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool))
    if not number:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise ValueError(f"{name} must be a finite number in float32, not {value!r}")
    return float(value)


def keep_numbers(options: object, *names: str) -> None:
    """Checks these fields of frozen options, which then hold floats."""
    for name in names:
        object.__setattr__(options, name, check_number(name, getattr(options, name)))


def check_flag(name: str, value: bool) -> None:
    """Raises TypeError naming the argument where `value` is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
