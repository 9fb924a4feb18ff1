"""The processes that share a rendering: results in order, and errors that arrive in the parent."""

from __future__ import annotations

import numpy as np
import pytest

from crossret.data.scenes import workers
from crossret.data.scenes.layout import picture_path
from crossret.data.scenes.task import Task
from crossret.data.scenes.workers import run_tasks


def tasks_in(directory, sizes=(1, 2, 1), grid=False):
    return [
        Task(str(directory), 0, "train", 10 * number, 10 * number + size, grid) for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("grid", [False, True])
def test_results_come_in_the_order_of_the_tasks(tmp_path, grid):
    picture_path(tmp_path, "train", 0).parent.mkdir(parents=True)
    tasks = tasks_in(tmp_path, grid=grid)
    for one, other in zip(run_tasks(tasks, 1), run_tasks(tasks, 2), strict=True):
        assert one.captions == other.captions
        assert one.grounding == other.grounding
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.boxes, other.boxes)


@pytest.mark.parametrize("count", [1, 2])
def test_a_picture_that_cannot_be_written(tmp_path, count):
    with pytest.raises(FileNotFoundError, match=r"00000\.png"):
        list(run_tasks(tasks_in(tmp_path / "absent"), count))


KILLED = "import os, sys; sys.stdin.readline(); sys.stdout.write({said!r}); sys.stdout.flush(); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(7)", "ended unexpectedly, with exit status 7"),
        (KILLED.format(said=""), "was killed by SIGKILL, perhaps for want of memory"),
        (KILLED.format(said='{"captions": [], "gro'), "was killed by SIGKILL"),
        (KILLED.format(said='{"captions": [], "grounding": [], "lengths": [9, 9]}\nhalf'), "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_dies(tmp_path, monkeypatch, program, message):
    monkeypatch.setattr(workers, "_PROGRAM", program)
    with pytest.raises(ChildProcessError, match=f"a rendering process {message}"):
        list(run_tasks(tasks_in(tmp_path), 2))
