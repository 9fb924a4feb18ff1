"""Settings that every test shares: hypothesis profiles and threads per worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from crossret_kernels.backends import NATIVE_MISSING

# A shell starts what runs in its background with SIGINT ignored, nohup with SIGHUP, and tests and the programs that
# they start inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadlines: shared machines stall, and no test of ours measures time.
# Examples are the same in every run: `make fuzz` draws new ones. Fewer where the processor has many instruction sets,
# each of which most tests of kernels go through: a run is to take no longer there.
_sets = torch.ops.crossret.cpu_isas().split() if NATIVE_MISSING is None else []
_few = 120 // max(3, len({*_sets} - {"amx_emulated"}))
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True, max_examples=_few)
settings.register_profile("brief", settings.get_profile("same"), max_examples=10)  # a tenth, for sanitizers
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Workers of pytest-xdist share the cores; without this each would start a thread for every core.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // _workers))


@pytest.fixture
def crossret(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command, as tests of all rooms call it; those of the kernels do without what it imports."""
    from tests.cli.command import Cli

    return Cli(capsys)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For a module that computes on one thread, whatever its tests set."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
