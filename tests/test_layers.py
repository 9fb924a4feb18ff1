"""Layers of `crossret`: imports go down the table in CONTRIBUTING.md and, within a layer, from left to right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "crossret"
DOOR = PACKAGE / "__init__.py"  # imports what it is asked for, when it is asked


def test_imports_go_down() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("| layer of `crossret/` ")[2].partition("\n\n")[0]
    order = [room.strip("/") for row in table.splitlines()[2:] for room in re.findall("`(.*?)`", row.split("|")[2])]
    files = [path for path in PACKAGE.rglob("*.py") if path != DOOR]
    assert sorted(order) == sorted({_room(path) for path in files})
    upwards = {
        (path.relative_to(PACKAGE).as_posix(), other)
        for path in files
        for other in map(_room, _imported(path))
        if order.index(other) < order.index(_room(path))
    }
    assert not upwards


def _room(path: Path) -> str:
    """Folder of a file, or its own name where it is in none."""
    return (path.with_suffix("") if path.parent == PACKAGE else path.parent).relative_to(PACKAGE).as_posix()


def _imported(path: Path) -> Iterator[Path]:
    """Files of the package that a file imports, wherever in it; what a door shows of its own folders is left out."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found = [_file(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports by a relative name"
            found = [_file(f"{node.module}.{alias.name}") or _file(f"{node.module}") for alias in node.names]
        else:
            continue
        for file in found:
            if file is not None and file != DOOR and not (path.name == "__init__.py" and path.parent in file.parents):
                yield file


def _file(name: str) -> Path | None:
    path = CHECKOUT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if PACKAGE in file.parents and file.is_file()), None)
