"""The CUDA kernels compiled for GPUs that are not there, warnings as errors, and what they need of a multiprocessor.

Where nvcc is missing they are not compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Registers and bytes of shared memory at most: two blocks of 256 threads or more fit a multiprocessor. Nothing lies in
# local memory.
BOUNDS = {
    "hinge_statistics": (128, 15360),
    "losses_of_statistics": (64, 6144),
    "sum_losses": (40, 2048),
    "score_gradients": (128, 4096),
    "words": (40, 1024),
    "narrowed": (40, 0),
    "widened_bits": (40, 0),
    "copied": (40, 0),
    "loaded": (40, 0),
    "multiplied": (40, 0),
    "calculated": (40, 0),
    "voted": (40, 0),
}
KERNELS = 9 + 9 + 5 + 3 + 1 + 3 + 4 + 3  # of tests/simt/kernels.cu
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '\w+'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:, used \d+ barriers)?(?:, (?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


def nvcc() -> str:
    """The compiler on PATH, or that of the toolkit that CUDA_HOME names."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", ""), "bin"))
    if found is None:
        pytest.skip("no nvcc: CUDA kernels are not compiled")
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_stay_within_registers(architecture: str, tmp_path: Path) -> None:
    compiler = nvcc()
    known = subprocess.run([compiler, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    if architecture not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    command = [compiler, "-std=c++17", f"-arch={architecture}", "-cubin", "--resource-usage", "-Werror", "all-warnings"]
    source, output = ROOT / "tests" / "simt" / "kernels.cu", tmp_path / "kernels.cubin"
    ran = subprocess.run(
        [*command, "-I", str(ROOT / "csrc"), str(source), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    report = ran.stdout + ran.stderr
    assert ran.returncode == 0, report
    entries = list(ENTRY.finditer(report))
    assert len(entries) == report.count("Compiling entry function") == KERNELS
    for entry in entries:
        name = next(kernel for kernel in BOUNDS if kernel in entry["name"])
        registers, shared = BOUNDS[name]
        assert entry["stack"] == entry["stores"] == entry["loads"] == "0", entry[0]
        assert int(entry["registers"]) <= registers, entry[0]
        assert int(entry["shared"] or 0) <= shared, entry[0]
