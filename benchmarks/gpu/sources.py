"""What figures of the Triton kernels were made by: a hash of the kernels' sources and of all they are built on."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "crossret_kernels"
IMPORT = re.compile(rf"^\s*(?:from|import) ({PACKAGE}[\w.]*)", re.MULTILINE)


def kernel_sources(root: Path = ROOT) -> list[Path]:
    """The package's triton*.py, all in folders named triton and, at any remove, the modules that they import."""
    wanted = sorted({*(root / PACKAGE).glob("**/triton*.py"), *(root / PACKAGE).glob("**/triton/*.py")})
    found: set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path not in found:
            found.add(path)
            modules = IMPORT.findall(path.read_text(encoding="utf-8"))
            wanted += [file for module in modules if (file := _file_of(module, root)) is not None]
    return sorted(found)


def sources_hash(root: Path = ROOT) -> str:
    """Changes with any byte and any name of the kernels' sources."""
    digest = hashlib.sha256()
    for path in kernel_sources(root):
        contents = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(contents)}\n".encode())
        digest.update(contents)
    return digest.hexdigest()[:16]


def _file_of(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    return path if path.is_file() else None
