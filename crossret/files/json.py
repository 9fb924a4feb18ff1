"""JSON: whatever is wrong with what others wrote is one ValueError that names the place; our own is written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from crossret.files.atomic import atomic_write
from crossret.files.regular import LARGEST_LINES, read_regular


def parse_json(text: str | bytes, place: str | os.PathLike[str]) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Args:
        text: the JSON.
        place: the file, or the part of one, that errors begin with.

    Raises:
        ValueError: not JSON, nested too deeply, or an object has two values of one name.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"{place}: not JSON (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two values of the name {next(name for name in names if names.count(name) > 1)!r}")
    return values


def parse_json_object(text: str | bytes, place: str | os.PathLike[str]) -> dict[str, Any]:
    """Object by ``parse_json`` of a text that must be a JSON object.

    Raises:
        ValueError: as ``parse_json``, or the value is no object.
    """
    value = parse_json(text, place)
    if not isinstance(value, dict):
        raise ValueError(f"{place}: not a JSON object, but {type(value).__name__}")
    return value


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value that a JSON file holds.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: as ``parse_json``, or as ``read_regular``; names it.
    """
    return parse_json(read_regular(path), path)


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: as ``parse_json_object``, or as ``read_regular``; names it.
    """
    return parse_json_object(read_regular(path), path)


def write_json(path: str | os.PathLike[str], contents: object) -> None:
    """Write JSON for people and programs, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(json.dumps(contents, indent=2, ensure_ascii=False).encode() + b"\n")


def write_json_lines(path: str | os.PathLike[str], entries: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(path) as file:
        for entry in entries:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read one JSON object a line, as a training's log.jsonl has them.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a JSON object, named with the file; or as ``read_regular``.
    """
    entries = []
    for number, line in enumerate(read_regular(path, LARGEST_LINES).splitlines(), start=1):
        entries.append(parse_json_object(line, f"{path}, line {number}"))
    return entries


def flattened(contents: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of objects in objects, by their names with dots between."""
    flat: dict[str, Any] = {}
    for name, value in contents.items():
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
