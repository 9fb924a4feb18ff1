"""The vector types and tiles of the native library, each compiled by itself and checked against plain arithmetic."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
]
AVX512 = "avx512f avx512bw avx512vl avx512dq"
# GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
FOR_AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-uninitialized -Wno-maybe-uninitialized"
COMPILER = "g++"
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"


@dataclass(frozen=True)
class Build:
    """One vector type: its header, what else is defined, and the processor's flags that it needs."""

    isa: str
    vector: str
    defined: tuple[str, ...] = ()
    tiles: str | None = None
    needed: str = ""
    target: str = ""

    def command(self, compiler: str, output: Path) -> list[str]:
        """How a compiler builds the checks of this type."""
        tiles = [] if self.tiles is None else [f'-DTILES="{self.tiles}"']
        definitions = [f"-DCROSSRET_ISA={self.isa}", f'-DVECTOR="simd/{self.vector}"', *tiles]
        definitions += [f"-D{name}" for name in self.defined]
        sources = ROOT / "tests" / "native" / "vector_test.cpp", ROOT / "csrc" / "amx_permission.cpp"
        return [
            compiler,
            *FLAGS,
            *self.target.split(),
            "-I",
            str(ROOT / "csrc"),
            *definitions,
            *map(str, sources),
            "-o",
            str(output),
        ]


ANYWHERE = [
    Build("base", "base.h"),
    Build("amx_emulated", "base.h", ("CROSSRET_WIDE", "CROSSRET_BF16_DOTS", "FLUSHES"), "amx_emulated.h"),
]
X86 = [
    Build("avx2", "avx2.h", ("FUSED",), needed="avx2 fma f16c", target="-mavx2 -mfma -mf16c"),
    Build("avx512", "avx512.h", ("FUSED",), needed=AVX512, target=FOR_AVX512),
    Build(
        "avx512bf16",
        "avx512.h",
        ("FUSED", "CROSSRET_BF16_DOTS"),
        needed=f"{AVX512} avx512_bf16",
        target=f"{FOR_AVX512} -mavx512bf16",
    ),
    Build(
        "amx",
        "avx512.h",
        ("FUSED", "CROSSRET_BF16_DOTS"),
        "simd/amx.h",
        needed=f"{AVX512} avx512_bf16 amx_tile amx_bf16",
        target=f"{FOR_AVX512} -mavx512bf16 -mamx-tile -mamx-bf16",
    ),
]
AARCH64 = [
    Build("neon", "neon.h", ("FUSED",), needed="asimd"),
    Build(
        "neon_bf16",
        "neon.h",
        ("FUSED", "CROSSRET_BF16_DOTS", "ROUNDS_TO_ODD"),
        needed="asimd bf16",
        target="-march=armv8.2-a+bf16",
    ),
]


def name_of(build: Build) -> str:
    """What a test is called by."""
    return build.isa


def missing(*programs: str) -> list[str]:
    """Which of these programs are not on PATH."""
    return [program for program in programs if shutil.which(program) is None]


def processor_flags() -> set[str]:
    """What the processor has, by the kernel's names; nothing where the kernel does not say."""
    info = Path("/proc/cpuinfo")
    found = (
        re.search(r"^(?:flags|Features)\s*:(.*)", info.read_text(encoding="utf-8"), re.MULTILINE)
        if info.exists()
        else None
    )
    return set(found[1].split()) if found else set()


def compile_and_run(build: Build, compiler: str, directory: Path, *emulator: str) -> None:
    """Build the checks of a type, run them, and fail with what they print."""
    program = directory / build.isa
    compiled = subprocess.run(build.command(compiler, program), capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "0 failures\n"


@pytest.mark.parametrize("build", [*ANYWHERE, *X86, *AARCH64], ids=name_of)
def test_vectors_compute_what_scalars_do(build: Build, tmp_path: Path) -> None:
    if missing(COMPILER):
        pytest.skip(f"no {COMPILER}")
    if lacking := set(build.needed.split()) - processor_flags():
        pytest.skip(f"this processor has no {' '.join(sorted(lacking))}")
    compile_and_run(build, COMPILER, tmp_path)


@pytest.mark.parametrize("build", [*ANYWHERE, *AARCH64], ids=name_of)
def test_vectors_of_aarch64_compute_what_scalars_do(build: Build, tmp_path: Path) -> None:
    if absent := missing(CROSS_COMPILER, EMULATOR):
        pytest.skip(f"no {' and no '.join(absent)}")
    system = f"/usr/{CROSS_COMPILER.removesuffix('-g++')}"
    compile_and_run(build, CROSS_COMPILER, tmp_path, EMULATOR, "-cpu", "max", "-L", system)
