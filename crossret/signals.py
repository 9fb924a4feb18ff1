"""Signals that end a command as Ctrl-C does: a scheduler's that wants the machine back, a terminal's that is gone."""

from __future__ import annotations

import signal
from types import FrameType

from crossret import system

_received: int = signal.SIGINT


def end_like_ctrl_c() -> None:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupts, where the system would have ended the process.

    A command that nohup starts ignores SIGHUP, which stays so.
    """
    for number in system.ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def exit_status() -> int:
    """Exit status that a shell reports of a process that this signal ended: 128 and the signal's number."""
    return 128 + _received


def what_happened() -> str:
    """Words for what ended the command."""
    return "interrupted" if _received == signal.SIGINT else f"ended by {signal.Signals(_received).name}"


def how_it_ended(status: int) -> str:
    """Words for the end of another process, to follow its name.

    Args:
        status: as ``subprocess`` has it, less than 0 where a signal ended it, or as ``exit_status``.
    """
    number = -status if status < 0 else status - 128
    if system.was_killed(number):
        return "was killed by SIGKILL, perhaps for want of memory"
    if number in set(signal.Signals):
        return f"was ended by {signal.Signals(number).name}"
    return f"ended unexpectedly, with exit status {status}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    # They often come in twos. Only Ctrl-C says twice that not even a checkpoint is wanted.
    for each in system.ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
