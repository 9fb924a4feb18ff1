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
    others = multiprocessing.active_children()
    # Threads of a caller's BLAS do not survive a fork.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=pools.begin)
    try:
        yield from pool.map(render_task, tasks)
    except BrokenProcessPool as error:
        raise ChildProcessError("a rendering process ended unexpectedly, perhaps for want of memory") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in others:  # they would finish what they are at, and another task each
                process.kill()
        pool.shutdown()
