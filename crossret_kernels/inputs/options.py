"""Checks on the options of every operation: one clear error that names the argument."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch.compiler import is_compiling

DIRECTIONS = ("t2i", "i2t")
# Limits of the numbers that kernels compute with.
FLOAT32_MAX = torch.finfo(torch.float32).max
FLOAT32_TINY = torch.finfo(torch.float32).tiny

Options = TypeVar("Options")


class Coded:
    """Options that carry themselves as operations in csrc take them.

    Attributes:
        schema: the arguments of operations, named as the fields that they carry.
        modes: all names that a field may have, by the field; an operation takes the place of one among them.
        codes: the arguments' values.
    """

    schema: ClassVar[str]
    modes: ClassVar[Mapping[str, tuple[str, ...]]]
    codes: tuple[Any, ...]  # no field of theirs

    @classmethod
    def coded(cls) -> list[str]:
        """Names of the fields that operations take, in their order."""
        return [argument.split()[-1] for argument in cls.schema.split(", ")]

    def check(self, *apart: str) -> None:
        """TypeError or ValueError where a field is none of its modes, no flag or no number; which are then floats."""
        for kind, name in (argument.split() for argument in self.schema.split(", ")):
            value = getattr(self, name)
            if name in self.modes:
                choose(name, value, self.modes[name])
            elif kind == "bool":
                check_flag(name, value)
            elif name not in apart and (kind == "float" or (kind == "float?" and value is not None)):
                keep_numbers(self, name)

    def carry(self) -> None:
        """Keeps the codes of the fields, once they are checked."""
        modes, fields = self.modes, [(name, getattr(self, name)) for name in self.coded()]
        codes = tuple(modes[name].index(value) if name in modes else value for name, value in fields)
        object.__setattr__(self, "codes", codes)  # they are frozen

    @classmethod
    @lru_cache
    def of_codes(cls, *codes: Any) -> Any:
        """From what operations take; what is behind the options is left out."""
        modes, fields = cls.modes, dict(zip(cls.coded(), codes, strict=False))
        return cls(**{name: modes[name][code] if name in modes else code for name, code in fields.items()})


class Directed(Coded):
    """Options of scores that have a direction."""

    direction: str

    @property
    def ways(self) -> tuple[Directed, ...]:
        """Options of each direction whose scores are averaged."""
        return (self,)

    def unsupported(self, backend: str) -> str | None:
        """Which of these options the backend's kernels do not have, if any, as a user writes it."""
        return None


def checked(kind: type[Options], options: Options | None, fields: Mapping[str, Any]) -> Options:
    """`options`, by default those of `kind`, with these fields in place of theirs.

    They are immutable, and their checks, which cost as much as a small score, run once.

    Raises TypeError where `options` are of another kind, which has no such field, or as the checks do.
    """
    if options is not None:
        if not isinstance(options, kind):
            raise TypeError(f"options must be {kind.__name__}, not {type(options).__name__}")
        if not fields:
            return options
    result: Options
    if not is_compiling():  # which does not know caches
        try:
            result = _build_once(kind, options, **fields)
        except TypeError:  # a value that is no key, or that the checks refuse: they tell, and of no other error
            pass
        else:
            return result
    result = _build(kind, options, **fields)
    return result


def _build(kind: Any, options: Any, /, **fields: Any) -> Any:
    return kind(**fields) if options is None else replace(options, **fields)


_build_once: Callable[..., Any] = lru_cache(typed=True)(_build)  # 1 is no flag, and equals True


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
