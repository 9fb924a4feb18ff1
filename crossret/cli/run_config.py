"""The settings of a command as a file: what --config reads, and what is written beside a run to reproduce it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.exceptions import TyperException

from crossret import __version__
from crossret.files.toml import read_toml, write_toml

# Options that no file holds: where a run goes, and whether it begins.
_ONLY_TYPED = ("config", "output", "resume", "help")
_logger = logging.getLogger(__name__)


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make a file's values the command's defaults, so that what is typed beside it wins: callback of --config.

    A value is read when the command asks for it: one that something typed takes the place of may be wrong, as the path
    of another machine is.

    Raises:
        typer.BadParameter: the file has a key that is no option, or, later, a value that the option does not take.
        ValueError, OSError: as ``read_toml``.
    """
    if path is not None:
        parameters = {str(each.name): each for each in context.command.params if each.name not in _ONLY_TYPED}
        values = read_toml(path)
        for name in values:
            if name not in parameters:
                meant = difflib.get_close_matches(name, parameters, n=1)
                hint = f"; did you mean {meant[0]}?" if meant else ""
                raise typer.BadParameter(f"{path}: {context.command.name} has no setting {name!r}{hint}")
        context.default_map = {
            name: partial(_checked, context, parameters[name], value, path) for name, value in values.items()
        }
        _logger.info("settings of %s: %s", path, ", ".join(values))
    return path


def overrules(context: typer.Context, name: str) -> bool:
    """Whether an option was typed that a file has another value of."""
    if name not in (context.default_map or {}) or _of_file(context, name):
        return False
    return str(context.params[name]) != str(context.lookup_default(name))


def typed(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name; None where the value is a file's."""
    return {name: None if _of_file(context, name) else value for name, value in options.items()}


def of_file(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name with a file's values; None where it has none."""
    return {name: context.lookup_default(name) for name in options}


def _of_file(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def _checked(context: typer.Context, parameter: Any, value: object, path: Path) -> Any:
    try:
        read = value if getattr(parameter, "is_flag", False) and isinstance(value, bool) else _as_typed(value)
        parameter.process_value(context, read)
    except (TyperException, ValueError) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        raise typer.BadParameter(f"{path}: {parameter.name}: {message}") from error
    return read


def _as_typed(value: object) -> Any:
    """A value as it would be typed, for the option to read: 2.5 shall not pass for a whole number."""
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, list) and not any(isinstance(part, (list, dict, bool)) for part in value):
        return [str(part) for part in value]
    raise ValueError("must be a number, a text, true, false or a list of these")


def write_config(path: Path, command: str, settings: Mapping[str, Any]) -> None:
    """Write the settings of a command, so that they do the same again; those that are None are left out.

    Raises:
        OSError: the file cannot be written.
    """
    values = {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in settings.items()
        if value is not None
    }
    comment = (
        f"Written by crossret {__version__}. The same again, into another directory:\n"
        f"crossret {command} --config {path.name} --output ...; what is typed beside it wins (--seed 1, --set p=4)."
    )
    write_toml(path, values, comment)
