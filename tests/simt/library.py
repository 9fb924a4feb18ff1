"""The library that runs CUDA kernels on the CPU: built once for all workers of a test run."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "simt"
TORCH = Path(torch.__file__).parent
COMPILER = "g++"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
FLAGS += ["-DCROSSRET_SIMT", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
FLAGS += ["-I", str(ROOT / "csrc"), "-I", str(OWN), "-isystem", str(TORCH / "include")]
LINK_FLAGS = ["-shared", "-Wl,--no-undefined", f"-Wl,-rpath,{TORCH / 'lib'}", "-L", str(TORCH / "lib"), "-ltorch_cpu"]
# Set where the sanitizers' runtimes are in the process: see the Makefile.
SANITIZED = "CROSSRET_SIMT_SANITIZED" in os.environ
if SANITIZED:
    FLAGS += ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    LINK_FLAGS += ["-fsanitize=address,undefined"]


def sources() -> list[Path]:
    """Ours, and all of the CUDA library but what asks CUDA itself."""
    csrc = ROOT / "csrc"
    own = [OWN / "driver.cpp", OWN / "driver_products.cpp", OWN / "through_torch.cpp"]
    return [*own, csrc / "cuda" / "binding.cpp", *sorted(csrc.rglob("cuda_*.cpp")), *sorted(csrc.rglob("cuda*.cu"))]


def build(directory: Path) -> Path:
    """The library, compiled by the first who asks for it."""
    if platform.machine() != "x86_64":
        pytest.skip("threads are switched by code for x86-64")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    library = directory / "simt.so"
    with (directory / "simt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
                objects = list(compilers.map(lambda source: _compiled(source, directory), sources()))
            made = library.with_suffix(".made")
            _run(COMPILER, *map(str, objects), *LINK_FLAGS, "-o", str(made))
            made.rename(library)
    return library


def _compiled(source: Path, directory: Path) -> Path:
    """Whatever its name ends in, as C++."""
    made = directory / f"{'.'.join(source.relative_to(ROOT).parts)}.o"
    _run(COMPILER, *FLAGS, "-x", "c++", "-c", str(source), "-o", str(made))
    return made


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
