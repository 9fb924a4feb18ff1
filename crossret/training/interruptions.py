"""Signals that end a training: held back while its state is between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from crossret import system

# Signals of a terminal, of a scheduler that wants the machine back, and of a terminal that is gone.
ENDING = (signal.SIGINT, *system.ENDING)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals that Python would act on back until the end of the block. They reach the main thread only.

    A signal that the system acts on (by default, all but Ctrl-C) is left to it. Where the block fails, its error is
    what ends the training, and no signal is acted on: the state may be that between two steps.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    with ExitStack() as restore:
        for number in ENDING:
            if callable(previous := signal.getsignal(number)):
                signal.signal(number, lambda received_number, _: received.append(received_number))
                restore.callback(signal.signal, number, previous)
        yield
    if received:
        signal.raise_signal(received[0])
