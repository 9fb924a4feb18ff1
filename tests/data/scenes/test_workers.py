"""The processes that share a rendering: errors that arrive in the parent, and their end with it."""

from __future__ import annotations

import os
import signal

import pytest

from crossret.data.scenes import workers
from crossret.data.scenes.task import Task
from crossret.data.scenes.workers import run_tasks


def tasks_in(directory):
    return [Task(str(directory), 0, "train", number, number + 1, False) for number in range(3)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_picture_that_cannot_be_written(tmp_path, count):
    with pytest.raises(FileNotFoundError, match=r"00000\.png"):
        list(run_tasks(tasks_in(tmp_path / "absent"), count))


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "render_task", die)
    with pytest.raises(ChildProcessError, match="a rendering process ended unexpectedly"):
        list(run_tasks(tasks_in(tmp_path), 2))
