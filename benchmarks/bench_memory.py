"""Memory beyond inputs, scores and gradients, of large calls in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.implementations import FASTEST
from benchmarks.measure import Bench
from benchmarks.memory import large_call

CASES = {
    "forward": Case(1000, 5000, dim=256, words=(20, 20)),
    "backward": Case(512, 512, words=(20, 20)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("direction", CASES)
def test_peak_memory(bench: Bench, direction: str, dtype: str) -> None:
    case = bench.size(CASES[direction])
    bench.describe(f"t2i AVG {direction}, peak memory of a fresh process", case, getattr(torch, dtype), FASTEST)
    if not bench.timed:
        bench.benchmark.pedantic(large_call, (direction, getattr(torch, dtype), case))
        return
    sizes = case.n_images, case.n_captions, case.dim
    program = [sys.executable, "-m", "benchmarks.memory", direction, dtype, *map(str, sizes)]
    options = {"check": True, "stdout": subprocess.PIPE, "text": True}
    done = bench.benchmark.pedantic(subprocess.run, (program,), options)
    bench.benchmark.extra_info.update(json.loads(done.stdout))
