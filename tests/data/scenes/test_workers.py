"""The processes that share a rendering: errors that arrive in the parent, and their end with it."""

from __future__ import annotations

import os
import select
import signal
from multiprocessing.connection import Connection

import pytest

from crossret.data.scenes import workers
from crossret.data.scenes.layout import picture_path
from crossret.data.scenes.task import Task
from crossret.data.scenes.workers import run_tasks


def tasks_in(directory):
    return [Task(str(directory), 0, "train", number, number + 1, False) for number in range(3)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_picture_that_cannot_be_written(tmp_path, count):
    with pytest.raises(FileNotFoundError, match=r"00000\.png"):
        list(run_tasks(tasks_in(tmp_path / "absent"), count))


def die(task, file):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_render", die)
    with pytest.raises(ChildProcessError, match="a rendering process ended unexpectedly"):
        list(run_tasks(tasks_in(tmp_path), 2))


def die_rather_than_send_in_parts(task, file):
    def send(self, contents, write=os.write):
        if len(contents) > select.PIPE_BUF:  # more may be there in part when a process is killed
            die(task, file)
        write(self._handle, contents)

    Connection._send = send
    workers._render(task, file)


def test_a_killed_worker_leaves_no_half_result_to_wait_for(tmp_path, monkeypatch):
    picture_path(tmp_path, "train", 0).parent.mkdir(parents=True)
    monkeypatch.setattr(workers, "_render", die_rather_than_send_in_parts)
    assert [len(done.captions) for done in run_tasks(tasks_in(tmp_path), 2)] == [5, 5, 5]
