"""The processes that share a rendering: a task in as a line of JSON, its result back as JSON and two arrays.

They are programs of their own, not forks (threads of a caller's BLAS do not survive one) and not ``multiprocessing``
spawns, which run the caller's main module again and therefore fail in scripts without a guard and in scripts on stdin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from io import BytesIO
from queue import SimpleQueue
from typing import IO

import numpy as np
from numpy.typing import NDArray

from crossret import signals
from crossret.data.scenes.task import Rendered, Task, render_task

_PROGRAM = "from crossret.data.scenes.workers import serve; serve()"


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
    processes = [_start() for _ in range(workers)]
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def delegate(task: Task) -> Rendered:
        process = idle.get()
        try:
            return _ask(process, task)
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(workers)  # each of its threads waits for one process
    try:
        yield from pool.map(delegate, tasks)
    finally:
        for process in processes:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


def serve() -> None:
    """Do tasks from stdin until it ends or nobody listens any more."""
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            _answer(Task(**json.loads(line)), sys.stdout.buffer)


def _start() -> subprocess.Popen[bytes]:
    environment = os.environ | {
        # Workers are as many as the cores already: one BLAS thread each.
        "OPENBLAS_NUM_THREADS": "1",
        # A worker finds the modules that this process found, installed or not.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    # In a session of its own, Ctrl-C does not reach it: the parent alone acts on it.
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _ask(process: subprocess.Popen[bytes], task: Task) -> Rendered:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # a dead worker is noticed below, by its silence
        process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise _death(process)
    answer = json.loads(line)
    if "error" in answer:
        raise OSError(*answer["error"])
    arrays = [process.stdout.read(length) for length in answer["lengths"]]
    if [len(array) for array in arrays] != answer["lengths"]:
        raise _death(process)
    features, boxes = map(_from_bytes, arrays)
    return Rendered(features, boxes, answer["captions"], answer["grounding"])


def _death(process: subprocess.Popen[bytes]) -> ChildProcessError:
    return ChildProcessError(f"a rendering process {signals.how_it_ended(process.wait())}")


def _answer(task: Task, output: IO[bytes]) -> None:
    try:
        rendered = render_task(task)
    except OSError as error:
        output.write(json.dumps({"error": [error.errno, error.strerror, error.filename]}).encode() + b"\n")
    else:
        arrays = [_to_bytes(rendered.features), _to_bytes(rendered.boxes)]
        answer = {
            "captions": rendered.captions,
            "grounding": rendered.grounding,
            "lengths": [len(array) for array in arrays],
        }
        output.write(b"\n".join([json.dumps(answer).encode(), b"".join(arrays)]))
    output.flush()


def _to_bytes(array: NDArray[np.float32]) -> bytes:
    """As a .npy file, in memory because NumPy's own reading and writing wants files that it can seek in."""
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _from_bytes(contents: bytes) -> NDArray[np.float32]:
    array: NDArray[np.float32] = np.load(BytesIO(contents), allow_pickle=False)
    return array
