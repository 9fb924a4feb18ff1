"""CPU seconds of one call by number of threads: the work of all threads together, which more of them must not add to.

Every number of threads has a process of its own, because OpenMP's threads stay once they are started. They wait
passively there (OMP_WAIT_POLICY): a thread that spins until the others are ready would count as one that works.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial

import torch

from benchmarks.cases import LATE_INTERACTION, SETTINGS, TRAINING_BATCH, Case
from benchmarks.measure import training_step
from benchmarks.turns import Side
from crossret_kernels import maxsim_scores, scan_scores

THREADS = (1, 2, 8, 16, 32)
SECONDS = 0.05  # CPU time of a measurement at least: shorter calls are repeated
CALLS: dict[str, Case] = {
    **{setting: TRAINING_BATCH for setting in SETTINGS},
    **{f"{setting} training step": TRAINING_BATCH for setting in SETTINGS},
    "Sum-Max": LATE_INTERACTION,
}


@contextmanager
def processes(threads: tuple[int, ...] = THREADS) -> Iterator[dict[int, Callable[[str, Case], Side]]]:
    """CPU seconds of a call of `CALLS`, by number of threads, each in a process with that number."""
    with ExitStack() as stack:
        pools = {}
        with _environment(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=None):
            for count in threads:
                pool = ProcessPoolExecutor(
                    1, multiprocessing.get_context("spawn"), torch.set_num_threads, initargs=(count,)
                )
                stack.callback(pool.shutdown, cancel_futures=True)
                if pool.submit(torch.get_num_threads).result() != count:  # starts it, in this environment
                    raise ValueError(f"torch does not start {count} threads")
                pools[count] = pool
        yield {count: partial(_side, pool) for count, pool in pools.items()}


def _side(pool: ProcessPoolExecutor, name: str, case: Case) -> Side:
    return lambda: pool.submit(cpu_seconds, name, case).result()


def cpu_seconds(name: str, case: Case) -> float:
    """CPU seconds of one call in all threads of this process; the first call's include set-up."""
    call = _call(name, case)
    start, calls = time.process_time(), 0
    while not calls or time.process_time() - start < SECONDS:
        call()
        calls += 1
    return (time.process_time() - start) / calls


@cache
def _call(name: str, case: Case) -> Callable[[], object]:
    inputs = case.inputs()
    if name == "Sum-Max":
        return partial(maxsim_scores, inputs.packed_regions(), inputs.words, backend="cpu")
    setting = SETTINGS[name.removesuffix(" training step")]
    score = partial(
        scan_scores, inputs.regions, inputs.words, word_lengths=inputs.word_lengths, backend="cpu", **setting
    )
    return score if name in SETTINGS else training_step(score, inputs)


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Sets variables, or with None removes them, for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
