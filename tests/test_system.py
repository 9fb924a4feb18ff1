"""Systems that lack what Linux has: everything is imported there, and what a file needs is done in another way."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest

from crossret import system
from tests.kernels.subprocesses import ROOT, run_python

ELSEWHERE = """
import mmap, os, pkgutil, signal, sys
for module, names in ((os, ("sched_getaffinity", "posix_fallocate", "sysconf", "O_PATH", "O_DIRECTORY", "O_NOFOLLOW")),
                      (signal, ("SIGHUP", "SIGKILL")), (mmap, ("MADV_DONTNEED",))):
    for name in names:
        delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
import crossret, crossret_kernels
for package in (crossret, crossret_kernels):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not any(part in found.name.split(".") for part in LEFT):
            __import__(found.name)
from crossret import system
assert system.cores() >= 1
assert system.memory() is None
with open("x.bin", "w+b") as file:
    system.reserve(file, 100)
assert os.stat("x.bin").st_size == 100
from crossret.files.atomic import atomic_write
with atomic_write("y.bin") as file:
    file.write(b"whole")
assert open("y.bin", "rb").read() == b"whole"
"""
# What takes packages that are not here, or that are of Linux alone; and what runs when it is imported.
LEFT = ("triton", "gpu", "cluster", "pylate", "colpali", "sentence_transformers", "__main__", "_native", "_native_cuda")


def test_everything_is_imported_where_there_is_less_than_linux_has(tmp_path: Path) -> None:
    done = run_python("-c", f"LEFT = {LEFT!r}\n{ELSEWHERE}", directory=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_here_everything_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.peak_mebibytes() > 1
    assert system.cores() >= 1
    assert (system.memory() or 0) > 2**27
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert system.cpu_model() is None
    assert system.peak_mebibytes() > 1
    assert math.isfinite(system.peak_mebibytes())


# The second block is one of those that glibc keeps once one of their size was freed.
LARGE = """
import ctypes, sys
from crossret import system
if sys.argv[1:]:
    system.return_large_blocks()
import torch
libc = ctypes.CDLL(None)
fields = [(name, ctypes.c_size_t) for name in "abcdefghij"]
libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": fields})
torch.empty(5 * 2**20)
before = libc.mallinfo2().e  # bytes that are mapped of their own
block = torch.empty(5 * 2**20)
print(libc.mallinfo2().e - before >= 20 * 2**20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="of glibc from 2.33 on")
def test_large_blocks_go_back_to_the_system(tmp_path: Path) -> None:
    for arguments, mapped in (((), "False"), (("return",), "True")):
        done = run_python("-c", LARGE, *arguments, directory=tmp_path, PYTHONPATH=str(ROOT))
        assert done.stdout.split() == [mapped], done.stderr
