"""Threads: a tiny call and a forked child stay on the calling one; any number of them gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_attend, scan_scores
from tests.kernels.subprocesses import run_python
from tests.kernels.threads import by_any_threads
from tests.kernels.tolerance import ISAS, cpu_isa

# Prints how many threads calls of some size have started.
STARTED = """
import os, sys, torch
from crossret_kernels import {function}
def count():
    return len(os.listdir("/proc/self/task"))
n, dim = map(int, sys.argv[1:])
torch.set_num_threads(3)
regions, words = torch.randn(n, 36, dim).requires_grad_(), torch.randn(n, 10, dim)
pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n))
for options in ({{}}, {{"normalize": True}}, {{"pairs": pairs}}, {{"direction": "i2t"}}):
    before = count()
    {function}(regions.detach(), words, backend="cpu", **options)
    {function}(regions, words, backend="cpu", **options).sum().backward()
    print(count() - before)
"""


def started(function: str, n: int, dim: int) -> list[int]:
    process = run_python("-c", STARTED.format(function=function), str(n), str(dim))
    assert process.returncode == 0, process.stderr
    return [int(line) for line in process.stdout.split()]


@pytest.mark.parametrize("function", ["scan_scores", "maxsim_scores"])
def test_a_tiny_call_stays_on_its_thread(function: str) -> None:
    assert started(function, 2, 64) == [0, 0, 0, 0]


@pytest.mark.parametrize("function", ["scan_scores", "maxsim_scores"])
def test_a_larger_call_takes_all_threads(function: str) -> None:
    assert started(function, 16, 128)[0] == 2


PAIRS = torch.randint(0, 12, (200, 2), generator=torch.Generator().manual_seed(0))
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scan_scores": scan_scores,
    "maxsim_scores": maxsim_scores,
    "scan_attend": partial(scan_attend, pairs=PAIRS),
}
CALLS = [(name, way) for name in FUNCTIONS for way in ("t2i", "i2t", "both") if (name, way) != ("scan_attend", "both")]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "direction"), CALLS)
def test_any_number_of_threads_gives_the_same_bits(name: str, direction: str, dtype: torch.dtype, isa: str) -> None:
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(*shape, 200, generator=generator).to(dtype) for shape in ((23, 36), (31, 20))]
    lengths = [torch.randint(1, side.size(1) + 1, (len(side),), generator=generator) for side in sides]

    def results() -> tuple[Tensor, ...]:
        leaves = [side.clone().requires_grad_() for side in sides]
        made = FUNCTIONS[name](*leaves, *lengths, direction=direction, normalize=True, backend="cpu")
        made = made if isinstance(made, tuple) else (made,)
        return *made, *torch.autograd.grad([x.square().sum() for x in made], leaves)

    with cpu_isa(isa):
        by_any_threads(results)


# Scores below float32's normal range, by every way of numbers there: how many are zero, in six calls each.
FLUSHED = """
import torch
from torch import Tensor
from crossret_kernels import maxsim_scores
regions, words = (1e-20 * (1 + torch.rand(64, 24, 128)) for _ in range(2))
for flushes in (False, True, False):
    torch.set_flush_denormal(flushes)
    zeros = {int((maxsim_scores(regions, words, backend="cpu", pooling="max") == 0).sum()) for _ in range(6)}
    print(*zeros)
"""


def test_all_threads_flush_what_the_caller_does() -> None:
    process = run_python("-c", FLUSHED, OMP_NUM_THREADS="2")
    assert process.stdout.split() == ["0", "4096", "0"], process.stderr


def test_a_forked_child_scores_and_trains_with_the_bits_of_its_parent() -> None:
    process = run_python("-m", "tests.kernels.cpu.forked_child", OMP_NUM_THREADS="2")
    assert process.returncode == 0, process.stderr


def test_the_first_calls_of_a_process_may_come_from_several_threads() -> None:
    process = run_python("-m", "tests.kernels.cpu.cold_threads", OMP_NUM_THREADS="2")
    assert process.returncode == 0, process.stderr
