"""Fixtures of every benchmark: threads, the measured floor, the machine noted beside its times."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.floor import Floor
from benchmarks.measure import Bench

THREADS = 2
# A peer reads this when it starts its threads, once; torch is told its number before every benchmark.
os.environ.setdefault("RAYON_NUM_THREADS", str(THREADS))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: left out of `make bench`, which takes minutes; in `make bench-all`")


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Keeps what figures depend on, and no names of the machine."""
    machine_info.clear()
    machine_info.update(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        torch=torch.__version__,
        isas=torch.ops.crossret.cpu_isas(),
    )


def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    for name in ("author_time", "branch", "project"):
        commit_info.pop(name, None)


def _processor() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return match[1] if match else platform.machine()


@pytest.fixture
def threads() -> int:
    """Threads of torch and of the floor; a benchmark parametrized with "threads" has its own number."""
    return THREADS


@pytest.fixture(scope="session")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Floor:
    return Floor(tmp_path_factory.mktemp("floor"))


@pytest.fixture
def bench(benchmark: Any, floor: Floor, threads: int) -> Iterator[Bench]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    date = datetime.datetime.now(datetime.timezone.utc).date()
    benchmark.extra_info.update(processor=_processor(), torch=torch.__version__, date=date.isoformat())
    yield Bench(benchmark, floor, threads)
    torch.set_num_threads(before)
    torch.ops.crossret.select_cpu_isa("")  # the fastest again, whichever was measured
