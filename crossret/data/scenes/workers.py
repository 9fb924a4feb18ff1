"""The processes that share a rendering."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from tempfile import TemporaryDirectory

from crossret import pools
from crossret.data.scenes.task import Rendered, Task, render_task
from crossret.files.naming import named_errors


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
    # Results are in files: a killed worker may have sent a part of one, for the rest of which the pool would wait.
    with TemporaryDirectory(prefix="crossret-") as place:
        files = [Path(place, str(number)) for number in range(len(tasks))]
        try:
            for file, _ in zip(files, pool.map(_render, tasks, files), strict=True):
                yield pickle.loads(file.read_bytes())
                file.unlink()
        except BrokenProcessPool as error:
            raise ChildProcessError("a rendering process ended unexpectedly, perhaps for want of memory") from error
        finally:
            pool.shutdown(cancel_futures=True)  # the tasks that run, and one more each, take moments


def _render(task: Task, file: Path) -> None:
    with named_errors(file):
        file.write_bytes(pickle.dumps(render_task(task)))
