"""The CUDA library built by nvcc for GPUs that are not there, warnings as errors: what its kernels need, what it holds.

Where nvcc is missing it is not built.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simt.sass import disassembler, loops, machine_code

ROOT = Path(__file__).parents[2]
# One serves every run of the suite: each costs a minute. `make cuda-registers` takes all whose machine code differs.
ARCHITECTURES = ("8.0", "9.0", "10.0") if "CROSSRET_EVERY_ARCHITECTURE" in os.environ else ("9.0",)
# Registers and bytes of shared memory at most: two blocks of 256 threads or more fit a multiprocessor. Nothing lies in
# local memory.
BOUNDS = {
    "pack_rows": (64, 0),
    "gram_matrices": (128, 0),
    "attend_by_warpgroups": (128, 0),
    "one_tile": (128, 0),
    "attend": (255, 0),
    "differentiate": (255, 0),
    "add_gram_products": (64, 0),
    "store_gradients": (64, 0),
    "words": (40, 1024),
    "narrowed": (40, 0),
    "widened_bits": (40, 0),
    "copied": (40, 0),
    "loaded": (40, 0),
    "multiplied": (40, 0),
    "calculated": (40, 0),
    "voted": (40, 0),
}
EXACT = ("attend_by_warpgroups", "one_tile")  # registers, not at most
# Bytes of registers that are spilled, of every other kernel none:
# what attention knows of its job from one barrier to the next, beside 72 sums of products, which sm_100 holds.
SPILLS = {"attend_by_warpgroups": 520, "attend": 356, "differentiate": 100, "add_gram_products": 8}
# Loops of kernels with the largest tiles and the usual options, on sm_90a: counts of instructions that tell each, and
# its instructions at most, 5 % above what they are. Those of a stage of products, and of the contexts that are weighed
# at once, by their exponentials.
OF_TALL = [({"HMMA": 36}, 101), ({"MUFU": 80}, 1660)]
OF_WARPGROUPS = [({"HGMMA": 8}, 107), ({"MUFU": 80}, 1662)]
LOOPS: dict[str, list[tuple[dict[str, int], int]]] = {
    r"attend.*TileShapeILi4ELi2ELi2ELi9E.*BFloat16ELb1E": OF_TALL,
    r"attend.*TileShapeILi4ELi2ELi2ELi9E.*TFloat32ELb1E": OF_TALL,
    # Beside them 16 rows' products of weights, ∂L/∂n of four cells, and their ∂L/∂S.
    r"differentiate.*TileShapeILi2ELi4ELi2ELi5E.*BFloat16ES\w_Lb1E": [
        ({"HMMA": 20}, 75), ({"MUFU": 80}, 1272), ({"HMMA": 18}, 314), ({"LDS": 16, "STS": 4}, 93),
        ({"LDS": 20, "STS": 4}, 83),
    ],
    r"attend_by_warpgroups.*BFloat16": OF_WARPGROUPS,
    r"attend_by_warpgroups.*TFloat32": OF_WARPGROUPS,
}  # fmt: skip
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<architecture>\d+)a?'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:, used \d+ barriers)?(?:, (?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)
# Stands for nvcc where setup.py looks for it: keeps the resource report of every compilation.
REPORTING_NVCC = """#!/bin/sh
case " $* " in
    *" -c "*)
        report=$(mktemp {reports}/XXXXXXXX)
        {nvcc} --resource-usage -Werror=all-warnings "$@" >"$report" 2>&1 || {{ cat "$report"; exit 1; }} ;;
    *) exec {nvcc} "$@" ;;
esac
"""


class Build(NamedTuple):
    """What one build made."""

    packages: Path  # with the library
    report: str
    architectures: tuple[str, ...]


def nvcc() -> str:
    """The compiler of the toolkit that CUDA_HOME names, or on PATH."""
    found = shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", ""), "bin")) or shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc: CUDA kernels are not compiled")
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Of `setup.py`, by the first who asks for it."""
    own, compiler = tmp_path_factory.getbasetemp(), nvcc()
    listed = subprocess.run([compiler, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    known = tuple(name for name in ARCHITECTURES if f"compute_{name.replace('.', '')}" in listed)
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    directory.mkdir(exist_ok=True)
    reports, packages = directory / "reports", directory / "packages"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not packages.exists():
            build(directory / "project", directory / "toolkit" / "bin" / "nvcc", compiler, reports, known)
            (directory / "project" / "made").rename(packages)
    return Build(packages, "\n".join(path.read_text(encoding="utf-8") for path in reports.iterdir()), known)


def build(project: Path, wrapper: Path, compiler: str, reports: Path, architectures: tuple[str, ...]) -> None:
    """Builds a copy, of which the library for CPUs is left out, into ``made``; words of kernels are compiled too."""
    for path in (project, wrapper.parent, reports):
        path.mkdir(parents=True)
    wrapper.write_text(REPORTING_NVCC.format(nvcc=compiler, reports=reports), encoding="utf-8")
    wrapper.chmod(0o755)
    for name in ("pyproject.toml", "setup.py", "setup_cuda.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    for name in ("crossret", "crossret_kernels"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("*.so", "*.txt", "__pycache__"))
    shutil.copytree(ROOT / "csrc", project / "csrc")
    for path in (project / "csrc").rglob("*.cpp"):
        if path.parent.name != "cuda" and not path.name.startswith("cuda_"):
            path.unlink()
    (project / "csrc" / "nothing.cpp").touch()
    for name in ("vocabulary.cuh", "vocabulary.cu"):
        shutil.copy(ROOT / "tests" / "simt" / name, project / "csrc")
    ran = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "made", "build_ext", "--build-lib", "made"],
        cwd=project,
        env={
            "PATH": os.environ["PATH"],
            "CUDA_HOME": str(wrapper.parents[1]),
            "CROSSRET_FORCE_CUDA": "1",
            "TORCH_CUDA_ARCH_LIST": ";".join(architectures),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    kernels = find_spec("crossret_kernels")
    assert kernels is not None
    assert kernels.origin is not None
    made = project / "made" / "crossret_kernels"
    shutil.copy(Path(kernels.origin).parent / "_native.abi3.so", made)


def test_loops_stay_short(built: Build) -> None:
    """Instructions of a stage of 64 bytes, by warpgroups 128, and of attention of 16 rows to 64 contexts, in every way
    of a step; of gradients' loops.
    """
    tool = disassembler()
    if tool is None or "9.0" not in built.architectures:
        pytest.skip("Triton, which brings a disassembler, is not installed, or this nvcc does not know 9.0")
    code = machine_code(tool, built.packages / "crossret_kernels" / "_native_cuda.abi3.so", "sm_90a")
    for kernel, bounds in LOOPS.items():
        (own,) = [loops(code[name]) for name in code if re.search(kernel, name)]
        for told_by, bound in bounds:
            size = next(loop.size for loop in own if all(loop.counts[name] == told_by[name] for name in told_by))
            assert 0.9 * bound <= size <= bound, (
                f"{kernel}: {size} instructions of {told_by} for at most {bound}; where they are far fewer, lower it"
            )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_stay_within_registers(built: Build, architecture: str) -> None:
    if architecture not in built.architectures:
        pytest.skip(f"this nvcc does not know {architecture}")
    entries = list(ENTRY.finditer(built.report))
    assert len(entries) == built.report.count("Compiling entry function")
    entries = [entry for entry in entries if entry["architecture"] == architecture.replace(".", "")]
    seen = set()
    for entry in entries:
        name = next(kernel for kernel in BOUNDS if kernel in entry["name"])
        seen.add(name)
        registers, shared = BOUNDS[name]
        most = SPILLS.get(name, 0)
        assert max(int(entry["stores"]), int(entry["loads"])) <= most, entry[0]
        # No arrays: nothing lies there but what is spilled, in units of 8 bytes.
        assert int(entry["stack"]) <= -(-int(entry["stores"]) // 8) * 8, entry[0]
        assert int(entry["registers"]) <= registers, entry[0]
        # Who takes registers waits for ever where a block began with fewer.
        assert name not in EXACT or int(entry["registers"]) == registers, entry[0]
        assert int(entry["shared"] or 0) <= shared, entry[0]
    assert seen == set(BOUNDS)
    assert not re.search(r"serialized|setmaxnreg", built.report), "products wait for each other, or registers stay"


def test_the_library_has_all_operations_for_cuda(built: Build) -> None:
    """It loads beside any torch, where there is no driver."""
    program = ROOT / "tests" / "gpu" / "built.py"
    ran = subprocess.run(
        [sys.executable, str(program)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(built.packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == f"crossret_kernels in {built.packages / 'crossret_kernels'}"
    assert f"native CUDA kernels: compute capability {' '.join(built.architectures)}" in lines
    assert "crossret::scan_scores_cuda, " in lines[-1]
    assert "crossret::scan_scores_cuda_backward.plain" in lines[-1]
    assert "crossret::attend_cuda" in lines[-1]


def test_the_library_needs_torchs_stable_abi_alone(built: Build) -> None:
    """Nothing of the toolkit: the CUDA runtime is its own, and stays within it."""

    def inspected(*tool: str) -> str:
        if shutil.which(tool[0]) is None:
            pytest.skip(f"{tool[0]} is not installed")
        library = str(built.packages / "crossret_kernels" / "_native_cuda.abi3.so")
        return subprocess.run([*tool, library], capture_output=True, text=True, check=True).stdout

    symbols = [line.split()[-2:] for line in inspected("nm", "-D").splitlines()]
    of_torch = {name for kind, name in symbols if kind == "U" and "@" not in name}
    assert of_torch
    assert {name for name in of_torch if not name.startswith(("aoti_torch_", "torch_"))} == set()
    assert not [name for kind, name in symbols if kind != "U" and "cuda" in name]
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", inspected("readelf", "-d", "-W")))
    assert "libtorch_cpu.so" in needed
    runtimes = r"(libstdc\+\+|libgcc_s|libm|libc|libdl|librt|libpthread|ld-linux[\w-]*)\.so\.\d+"
    assert {name for name in needed - {"libtorch_cpu.so"} if not re.fullmatch(runtimes, name)} == set()
