"""Runs Python programs in fresh processes, for what must be set before the kernels load or may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import SECONDS

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, directory: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments, on one thread, importing from `directory` first; killed after a time limit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CROSSRET_")}
    settings = {"PYTHONPATH": str(directory), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=kept | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * SECONDS,  # some take minutes beside sanitizers
    )
