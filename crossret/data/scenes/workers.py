"""The processes that share a rendering."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from crossret import pools
from crossret.data.scenes.task import Rendered, Task, render_task


def run_tasks(tasks: list[Task], workers: int) -> Generator[Rendered, None, None]:
    """The tasks' results in the tasks' order, computed by this process or by as many as there are workers.

    Raises:
        OSError: a picture cannot be written.
        ChildProcessError: a worker died.
    """
    workers = min(workers, len(tasks))
    if workers == 1:
        yield from map(render_task, tasks)
        return
    # Threads of a caller's BLAS do not survive a fork.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=pools.begin)
    try:
        yield from pool.map(render_task, tasks)
    except BrokenProcessPool as error:
        raise ChildProcessError("a rendering process ended unexpectedly, perhaps for want of memory") from error
    finally:
        # Not killed: a result that was half sent would be waited for. What they are at, and a task each, takes moments.
        pool.shutdown(cancel_futures=True)
