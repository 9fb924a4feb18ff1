"""The settings of a command as a file: what --config reads, and what is written beside a run to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
from typer.exceptions import TyperException

from crossret.cli.options import spelling
from crossret.files.toml import read_toml, write_toml

# What a file says nothing about: where a run goes, and whether it begins.
_ONLY_TYPED = ("config", "output", "resume", "help")


def use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make a file's values the command's defaults, so that what is typed beside it wins: callback of --config.

    Raises:
        typer.BadParameter: the file has a key that is no option, or a value that the option does not take.
        ValueError, OSError: as ``read_toml``.
    """
    if path is not None:
        parameters: dict[str | None, Any] = {each.name: each for each in context.command.params}
        defaults = {}
        for name, value in read_toml(path).items():
            if name not in parameters or name in _ONLY_TYPED:
                raise typer.BadParameter(f"{path}: {context.command.name} has no setting {name!r}")
            is_flag = getattr(parameters[name], "is_flag", False)
            defaults[name] = value if is_flag and isinstance(value, bool) else _typed(value, path, name)
            try:
                parameters[name].process_value(context, defaults[name])
            except (TyperException, ValueError) as error:
                message = error.format_message() if isinstance(error, TyperException) else str(error)
                raise typer.BadParameter(f"{path}: {name}: {message}") from error
        context.default_map = defaults
    return path


def _typed(value: object, path: Path, name: str) -> Any:
    """A value as it would be typed, for the option to read: 2.5 shall not pass for a whole number."""
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, list) and not any(isinstance(part, (list, dict, bool)) for part in value):
        return [str(part) for part in value]
    raise typer.BadParameter(f"{path}: {name} must be a number, a text, true, false or a list of these")


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
        f"Written by crossret {metadata.version('crossret')}. The same again, into another directory:\n"
        f"crossret {command} --config {path.name} --output ...; what is typed beside it wins ({spelling('seed')} 1)."
    )
    write_toml(path, values, comment)
