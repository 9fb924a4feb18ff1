"""Triton's own launcher takes the arguments of compiled kernels, named tuples of tensors and sizes among them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import triton

from crossret_kernels.backends import INTERPRETED
from tests.kernels.subprocesses import ROOT, run_python

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_kernels_are_launched(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    source = Path(__file__).with_name("idle_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    (tmp_path / "libcuda.so").symlink_to(library)
    result = run_python(
        "-m", "tests.kernels.gpu.idle_gpu", str(library),
        LD_LIBRARY_PATH=os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")]),
        TRITON_LIBCUDA_PATH=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(Path(triton.__file__).parents[1])]),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    launched = dict(line.split(": ") for line in result.stdout.splitlines())
    # Of attention packing, Gram matrices, attention and pooling; then as many of gradients.
    expected = {
        "scan_scores": "8",
        "maxsim_scores": "4",
        "triplet_loss": "3",
        "heterogeneous_scores": "15",
        "scan_scores by Triton": "8",
    }
    assert launched == expected
