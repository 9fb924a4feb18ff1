"""Differences between systems: Linux has everything here, macOS and Windows a part of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process from without, besides Ctrl-C's."""
_MAXRSS = 2**20 if sys.platform == "darwin" else 2**10  # units of ru_maxrss in a MiB
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_LARGE = 8 * 2**20  # bytes
_KILLED: int = getattr(signal, "SIGKILL", 0)


def was_killed(number: int) -> bool:
    """Whether this signal is the one with which the system ends a process where memory is short."""
    return number == _KILLED and number != 0


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def return_large_blocks() -> None:
    """Have glibc give large blocks of memory back to the system when they are freed; elsewhere they are left alone.

    Once a block of less than 32 MiB was freed it keeps those of that size, and may not find aligned ones again, as
    torch's are, so that a backward pass takes new memory for each of its temporary tensors. What the environment sets
    of either threshold stays.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # To set the one stops glibc from choosing the other, which it has at twice the one.
    settings = (("mmap_threshold", _M_MMAP_THRESHOLD, _LARGE), ("trim_threshold", _M_TRIM_THRESHOLD, 2 * _LARGE))
    for name, parameter, value in settings:
        tuned = f"malloc.{name}" in os.environ.get("GLIBC_TUNABLES", "")
        if mallopt is not None and not tuned and f"MALLOC_{name.upper()}_" not in os.environ:
            mallopt(parameter, value)


def lock(file: BinaryIO) -> None:
    """Lock an open file until it is closed.

    Raises:
        BlockingIOError: another process has it. OSError: there are no locks here.
    """
    if fcntl is None:
        raise OSError("no locks on this system")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def reserve(file: BinaryIO, size: int) -> None:
    """Make a file so long, with room on the disk for all of it where the system can say whether there is.

    Raises:
        OSError: the disk is too small.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        os.truncate(file.fileno(), size)


def drop_pages(mapping: mmap.mmap) -> None:
    """Take what was written to, or read of, a memory map out of this process, where the system does."""
    if hasattr(mmap, "MADV_DONTNEED") and sys.platform == "linux":  # elsewhere it may drop what was written
        mapping.madvise(mmap.MADV_DONTNEED)


def wait_for(process: subprocess.Popen[bytes]) -> float | None:
    """Wait for a child to end; the most memory that it had resident, in MiB, where the system says so.

    On Linux at least what this process has, which starts it.
    """
    if not hasattr(os, "wait4"):  # Windows
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss / _MAXRSS


def peak_mebibytes() -> float:
    """The most memory that this process had resident so far, in MiB; NaN where the system does not say.

    On Linux not getrusage's, which begins with that of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        match = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(encoding="ascii"), re.MULTILINE)
        if match is not None:
            return int(match[1]) / 1024
    try:
        import resource
    except ImportError:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MAXRSS


def cpu_model() -> str | None:
    """Name of the processor; None where the system does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:[ \t]*(\S.*)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return None if named is None else named[1].strip()
