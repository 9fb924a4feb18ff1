"""Functions put in place of a package's own, wherever it holds them, and taken out again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from types import FunctionType
from typing import Any


class Patch:
    """Replacements of a package's functions, by where these are: "module:name" or "module:Class.name".

    A package holds a function in more places than that: modules and classes that import it, and arguments' defaults.
    All are found, in every module of the package that is loaded; those loaded later import what is in place then.
    """

    def __init__(self, package: str, requirement: str, advice: str, replacements: Mapping[str, Any]) -> None:
        """
        Args:
            package: its name as it is imported.
            requirement: its name for pip, with the versions whose functions these are.
            advice: for errors, what to type where it, or this version of it, is not there.
            replacements: functions by the places of the package's own.
        """
        self._package = package
        self._requirement = requirement
        self._advice = advice
        self._replacements = replacements
        self._originals: dict[str, Any] = {}

    def patch(self) -> None:
        """Puts crossret's functions in place of the package's own; once more is no change.

        Call it before `from package import function` anywhere: names that modules other than the package's imported
        before keep the package's own function, and so do objects that took it into themselves, as a loss takes its
        similarity.

        Raises:
            ModuleNotFoundError: the package is not installed, or what it needs. ImportError: a function of it is not
                there, as in another version. Nothing is changed then.
        """
        if not self._originals:
            self._originals = {place: self._at(place) for place in self._replacements}
        self._swap(self._originals, self._replacements)

    def unpatch(self) -> None:
        """Puts the package's own functions back, the very objects; without `patch` before it is no change."""
        self._swap(self._replacements, self._originals)
        self._originals = {}

    def _at(self, place: str) -> Any:
        """Object at a place, as its module or class holds it: a static method as such."""
        module, _, path = place.partition(":")
        try:
            holder: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not error.name or error.name.partition(".")[0] != self._package:  # one that the package needs
                raise
            if sys.modules.get(self._package) is not None:
                raise self._another_version(error.name) from None
            message = f"{self._requirement} is not installed: {self._advice}"
            raise ModuleNotFoundError(message, name=self._package) from None
        *classes, name = path.split(".")
        try:
            for outer in classes:
                holder = vars(holder)[outer]
            return vars(holder)[name]
        except KeyError:
            raise self._another_version(place) from None

    def _another_version(self, missing: str) -> ImportError:
        name = self._requirement.partition(">")[0]
        try:
            version = f" {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            version = ""
        return ImportError(f"{name}{version} has no {missing}: patch() wants {self._requirement}; {self._advice}")

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
