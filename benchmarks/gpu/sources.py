"""Sources of GPU kernels, of which figures were made: for each backend a hash of its kernels' and of all they are built
on. python -m benchmarks.gpu.sources prints them.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Kernels, the host code beside them and, of CUDA's, what compiles them with which flags.
KERNELS = {
    "triton": ("crossret_kernels/**/triton*.py", "crossret_kernels/**/triton/*.py"),
    "cuda": (
        *("csrc/**/*.cu", "csrc/**/cuda_*.cpp", "csrc/cuda/*.cpp", "setup.py", "setup_cuda.py"),
        *("crossret_kernels/**/cuda/*.py", "crossret_kernels/**/cuda.py"),
    ),
}
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


def kernel_sources(backend: str, root: Path = ROOT) -> list[Path]:
    """The backend's own and, at any remove, what they import or include of the project's."""
    wanted = sorted(path for pattern in KERNELS[backend] for path in root.glob(pattern))
    found: set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path not in found:
            found.add(path)
            named = _imported(path) if path.suffix == ".py" else _included(path)
            wanted += [file for name in named if (file := root / name).is_file()]
    return sorted(found)


def source_hashes(root: Path = ROOT) -> dict[str, str]:
    """Hashes by backend; they change with any byte and any name of its sources."""
    return {backend: _hash(kernel_sources(backend, root), root) for backend in KERNELS}


def described(hashes: dict[str, str]) -> str:
    """Hashes by backend in one line."""
    return " ".join(f"{backend}:{value}" for backend, value in hashes.items())


def _hash(paths: list[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        contents = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(contents)}\n".encode())
        digest.update(contents)
    return digest.hexdigest()[:16]


def _imported(path: Path) -> Iterator[str]:
    """Files that modules of these names would have; what is imported from one may be a module itself."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (f"{module.replace('.', '/')}.py" for module in modules)


def _included(path: Path) -> Iterator[str]:
    return (f"csrc/{name}" for name in INCLUDE.findall(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    print(described(source_hashes()))
