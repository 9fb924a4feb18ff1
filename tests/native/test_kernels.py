"""The kernels of the native library without torch, checked pair by pair against the formulas in double precision."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
# Those of setup.py, but for how much is optimised.
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
FLAGS += ["-fno-strict-aliasing"]
# Of `make sanitize`: under the sanitizers, by every instruction set of x86-64 that this processor has.
SANITIZED = os.environ.get("CROSSRET_NATIVE_SANITIZED") == "1"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
COMPILER = "g++"
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
# Debian's packages that they are in.
PACKAGES = {CROSS_COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user"}
# What needs torch. tests/native/kernels_test.cpp has threads of its own.
TORCH = {"arguments.cpp", "attend_binding.cpp", "binding.cpp", "parallel.cpp", "tensors.cpp"}
FOR_NATIVE = {"x86_64": ["base", "avx2", *(["avx512", "avx512bf16"] if SANITIZED else [])], "aarch64": ["base", "neon"]}


def sources(isas: list[str]) -> list[Path]:
    """The driver, the kernels of these instruction sets and all that lies around kernels."""
    of_cuda = {*CSRC.glob("cuda/*.cpp"), *CSRC.rglob("cuda_*.cpp")}
    others = {*CSRC.rglob("*.cpp")} - of_cuda - {*CSRC.glob("isa/*.cpp")}
    found = [path for path in sorted(others) if path.name not in TORCH]
    return [ROOT / "tests" / "native" / "kernels_test.cpp", *found, *(CSRC / "isa" / f"{isa}.cpp" for isa in isas)]


def build(compiler: str, level: str, isas: list[str], directory: Path, *, workers: int = 1) -> Path:
    """The driver with the kernels of these instruction sets, compiled at `level` of optimisation but for itself."""

    def compiled(source: Path) -> Path:
        output = directory / f"{source.parent.name}-{source.stem}.o"
        # What only prepares calls is little code: it need not be fast.
        optimise = level if source.parent.name == "isa" else "-O1" if source.name == "kernels_test.cpp" else "-O0"
        run(compiler, *FLAGS, *sanitizers, optimise, "-I", str(CSRC), "-c", str(source), "-o", str(output))
        return output

    sanitizers = SANITIZERS if SANITIZED and compiler == COMPILER else []
    with ThreadPoolExecutor(workers) as pool:
        objects = [str(path) for path in pool.map(compiled, sources(isas))]
    program = directory / "kernels_test"
    static = ["-static"] if compiler == CROSS_COMPILER else []  # the emulated machine has no libraries
    run(compiler, *static, *sanitizers, "-pthread", *objects, "-o", str(program))
    return program


def test_every_part_of_the_kernels_includes_what_it_uses(tmp_path: Path) -> None:
    """Each compiles alone behind a vector type, so that no order of them matters."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is missing")

    def compiled(part: Path) -> None:
        name = part.relative_to(CSRC)
        source = tmp_path / f"{part.parent.name}-{part.stem}.cpp"
        headers = ("<cstdint>", "<cstring>", '"dispatch.h"', '"simd/base.h"', f'"{name}"')
        source.write_text("#define CROSSRET_ISA base\n" + "".join(f"#include {header}\n" for header in headers))
        run(COMPILER, *FLAGS, "-Wno-unused-function", "-fsyntax-only", "-I", str(CSRC), str(source))

    parts = sorted({*CSRC.rglob("*.inl")} - {CSRC / "isa" / "targeted.inl"})
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compiled, parts))


def test_plans_and_instruction_sets(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    program = tmp_path / "plans_test"
    parts = [CSRC / name for name in ("pairs/plan.cpp", "dispatch.cpp", "amx_permission.cpp")]
    source = ROOT / "tests" / "native" / "plans_test.cpp"
    run(COMPILER, *FLAGS, "-O0", "-I", str(CSRC), str(source), *map(str, parts), "-o", str(program))
    run(str(program))


def test_flags_are_those_of_the_library() -> None:
    recipe = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert [flag for flag in FLAGS if f'"{flag}"' not in recipe] == []


def run(*command: str) -> str:
    """What a command prints, which must succeed."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.emulated  # what it computes on this processor, tests/kernels do too
def test_kernels_compute_the_formulas(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    isas = FOR_NATIVE.get(platform.machine(), ["base"])
    assert run(str(build(COMPILER, "-O1", isas, tmp_path, workers=2 if SANITIZED else 1))).endswith("\n0 failures\n")


@pytest.mark.emulated
def test_kernels_of_aarch64_compute_the_formulas(tmp_path: Path) -> None:
    absent = [
        f"{program} (Debian's {package})" for program, package in PACKAGES.items() if shutil.which(program) is None
    ]
    if absent:
        pytest.skip(f"no {' and no '.join(absent)}")
    program = str(build(CROSS_COMPILER, "-O3", ["base", "neon", "neon_bf16"], tmp_path, workers=2))
    run(EMULATOR, "-cpu", "max", program, "base", "neon", "neon_bf16")
    # A processor without the BF16 extension: what needs it is left alone.
    older = run(EMULATOR, "-cpu", "cortex-a72", program)
    assert [line.split(":")[0] for line in older.splitlines()[:-1]] == ["base", "neon"]
