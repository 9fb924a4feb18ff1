"""crossret takes of crossret_kernels what is public and what `extending` lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import crossret_kernels
from crossret_kernels import extending, late_interaction
from tests.kernels.subprocesses import ROOT

MODULES = {module.__name__: module for module in (crossret_kernels, extending)}


def imports() -> Iterator[tuple[str, str, str]]:
    """What files of crossret import of the kernels: where, the module and the name; "" of a whole module."""
    for path in sorted((ROOT / "crossret").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [(str(node.module), alias.name) for alias in node.names]
            else:
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield from ((where, *names) for names in found if names[0].startswith("crossret_kernels"))


def test_crossret_imports_what_is_public_and_what_extending_lists() -> None:
    found = list(imports())
    assert {module for _, module, _ in found} >= MODULES.keys()
    for where, module, name in found:
        assert module in MODULES or module == late_interaction.__name__, (
            f"{where}: {name} by crossret_kernels.extending"
        )
        assert module not in MODULES or name in MODULES[module].__all__, f"{where}: {module} does not list {name!r}"


def test_extending_describes_what_it_lists() -> None:
    for name in extending.__all__:
        assert hasattr(extending, name)
        assert f"`{name}`" in str(extending.__doc__), name
