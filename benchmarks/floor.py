"""The machine's floor, measured by `peak.cpp`: floating-point operations and bytes read a second."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

SECONDS = 0.01  # a measurement: long enough for a core to reach its clock, short enough to stand beside every benchmark
READ_BYTES = 1 << 28  # beyond every cache


class Floor:
    """Measures the rates that bound an implementation; compiles their micro-benchmarks into `directory` when needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bytes_per_second: dict[int, float] = {}

    @cached_property
    def _library(self) -> ctypes.CDLL:
        """Compiled by what CXX names, c++ by default; a compiler that refuses is a CalledProcessError."""
        path = self._directory / "peak.so"
        source = Path(__file__).with_name("peak.cpp")
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))
        for function in (library.peak_float32, library.peak_bfloat16):
            function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
        library.read_seconds.restype = ctypes.c_double
        library.read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        return library

    def flop_per_second(self, dtype: torch.dtype, threads: int) -> float:
        """Multiply-adds in registers count twice; float16 has no arithmetic of its own and runs as float32."""
        peak = self._library.peak_bfloat16 if dtype == torch.bfloat16 else self._library.peak_float32
        return sum(_together(threads, lambda _: peak(SECONDS)))

    def bytes_per_second(self, threads: int) -> float:
        """Rate of reading memory that is in no cache, once a run: the best of five passes."""
        if threads not in self._bytes_per_second:
            parts = np.split(np.ones(READ_BYTES // 4, dtype=np.float32), threads)
            passes = [
                max(_together(threads, lambda i: self._library.read_seconds(parts[i].ctypes.data, parts[i].size)))
                for _ in range(5)
            ]
            self._bytes_per_second[threads] = READ_BYTES / min(passes)
        return self._bytes_per_second[threads]


def _together(threads: int, work: Callable[[int], float]) -> list[float]:
    """Results of `work` in threads that begin at the same moment; ctypes lets go of the interpreter's lock."""
    barrier = threading.Barrier(threads)

    def run(index: int) -> float:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))
