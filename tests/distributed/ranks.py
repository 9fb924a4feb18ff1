"""Processes of one group on this machine, which a test starts, and what each of them found."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.processes import time_limit

TIMEOUT = timedelta(seconds=60)


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a module's function returns on every rank of a Gloo group of ``size`` processes."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        task = Path(directory) / "task"
        task.write_bytes(pickle.dumps((function, arguments)))
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.ranks", directory, str(rank), str(size)],
                cwd=Path(__file__).parents[2],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        for process in processes:
            stack.enter_context(time_limit(process.pid))
        errors = [process.communicate()[1] for process in processes]
        for rank, (process, error) in enumerate(zip(processes, errors, strict=True)):
            assert process.returncode == 0, f"rank {rank}: {error}"
        return [pickle.loads((Path(directory) / f"result{rank}").read_bytes()) for rank in range(size)]


def main(directory: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", TIMEOUT, rank=rank, world_size=size)
    function, arguments = pickle.loads((directory / "task").read_bytes())
    result = function(*arguments)
    (directory / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
