"""Start of a pool's process, before it imports NumPy."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def begin() -> None:
    """Take one thread of BLAS, as pools are as large as the machine, leave Ctrl-C to the parent, and end with it."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent tells nobody: its workers would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
