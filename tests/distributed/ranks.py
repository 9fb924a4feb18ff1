"""Processes of one group on this machine, which a test starts, and what each of them found."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.processes import time_limit

SECONDS = 60.0  # after which a rank that does not answer is lost

# What ranks import takes seconds: one process imports it once, and they are forked from there.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.training.toy", "tests.models.batch", "torch._dynamo"])


def on_ranks(
    size: int, function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS, killed: int | None = None
) -> list[Any]:
    """What a module's function returns on every rank of a Gloo group of ``size`` processes.

    ``killed`` is the rank, if any, that ends by SIGKILL and returns nothing.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        task = pickle.dumps((function, arguments))  # multiprocessing would have the ranks share the tensors' memory
        ranks = [_CONTEXT.Process(target=_run, args=(directory, rank, size, seconds, task)) for rank in range(size)]
        for process in ranks:
            process.start()
            assert process.pid is not None
            stack.enter_context(time_limit(process.pid))
        results = []
        for rank, process in enumerate(ranks):
            process.join()
            if rank == killed:
                assert process.exitcode == -signal.SIGKILL
            else:
                assert process.exitcode == 0
                results.append(pickle.loads((directory / f"result{rank}").read_bytes()))
        failures = [result.text for result in results if isinstance(result, _Failure)]
        assert not failures, "\n".join(failures)  # one that is lost tells nothing of why another was
        return results


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _run(directory: Path, rank: int, size: int, seconds: float, task: bytes) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", f"file://{directory}/store", timeout, rank=rank, world_size=size)
    try:
        function, arguments = pickle.loads(task)
        result = function(*arguments)
    except BaseException:
        result = _Failure(f"rank {rank}: {traceback.format_exc()}")
    (directory / f"result{rank}").write_bytes(pickle.dumps(result))
    with suppress(RuntimeError):  # where one is lost
        dist.barrier()
        dist.destroy_process_group()
