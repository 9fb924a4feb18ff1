"""Functions put in place of a package's own, wherever it holds them, and taken out again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any


class Patch:
    """Replacements of a package's functions, by where these are: "module:name" or "module:Class.name".

    A package holds a function in more places than that: modules and classes that import it, and arguments' defaults.
    All are found, in every module of the package that is loaded; those loaded later import what is in place then.
    Objects that took a function into themselves before, as a loss takes its similarity, keep it.
    """

    def __init__(self, package: str, replacements: Mapping[str, Any]) -> None:
        self._package = package
        self._replacements = replacements
        self._originals: dict[str, Any] = {}

    def patch(self) -> None:
        """Puts crossret's functions in place of the package's own; once more is no change.

        Raises:
            ImportError: the package, or a function of it, is not there; nothing is changed.
        """
        if not self._originals:
            self._originals = {place: _at(place) for place in self._replacements}
        self._swap(self._originals, self._replacements)

    def unpatch(self) -> None:
        """Puts the package's own functions back, the very objects; without `patch` before it is no change."""
        self._swap(self._replacements, self._originals)
        self._originals = {}

    def _swap(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        by_identity = {id(old[place]): new[place] for place in self._originals}
        if not by_identity:
            return
        for holder in _holders(self._package):
            for name, value in list(vars(holder).items()):
                if id(value) in by_identity:
                    setattr(holder, name, by_identity[id(value)])
                else:
                    wrapped = isinstance(value, (staticmethod, classmethod))
                    _swap_defaults(value.__func__ if wrapped else value, by_identity)


def _at(place: str) -> Any:
    """What stands there, as its module or class holds it: a static method as such."""
    module, _, path = place.partition(":")
    holder: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    try:
        for own in classes:
            holder = vars(holder)[own]
        return vars(holder)[name]
    except KeyError:
        raise ImportError(f"{place} is not there: another version of the package than crossret knows") from None


def _holders(package: str) -> Iterator[Any]:
    """Modules of the package that are loaded, and classes that they define."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            yield module
            yield from (own for own in list(vars(module).values()) if isinstance(own, type) and own.__module__ == name)


def _swap_defaults(function: Any, by_identity: Mapping[int, Any]) -> None:
    if not isinstance(function, FunctionType):
        return
    defaults, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(id(value) in by_identity for value in defaults):
        function.__defaults__ = tuple(by_identity.get(id(value), value) for value in defaults)
    for name, value in by_name.items():
        by_name[name] = by_identity.get(id(value), value)
