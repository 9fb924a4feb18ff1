"""Kernels on the CPU: the launches of the library that tests/simt/library.py builds, as functions."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.gpu import sides as gpu_sides

# Bytes of shared memory that a block may have: of an H200, of an A100 and of GPUs of compute capability 8.6, 8.9, 12.0.
MOST_SHARED = 227 * 2**10, 163 * 2**10, 99 * 2**10


@dataclass(frozen=True)
class Schedule:
    """Who goes on when threads wait: 0, the first; 1, the last, the last block first; 2, whom a seed names.

    Asynchronous copies land when they are waited for under 0 and odd seeds, else at once.
    """

    order: int
    seed: int = 0


SCHEDULES = (Schedule(0), Schedule(1), Schedule(2, 1), Schedule(2, 2))


class Mistake(Exception):
    """What a kernel did wrong."""


@dataclass
class Place:
    """What accesses at one place of a kernel took, as traffic.h counts it: passes through shared memory, or sectors.

    Attributes:
        code: where it is in the library.
        least: the fewest that the same bytes could take.
    """

    kernel: str
    kind: str
    code: int
    instructions: int
    cost: int
    least: int


class Device:
    """The library's launches; a mistake of a kernel is raised."""

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        torch.ops.load_library(self.path)
        self._library = ctypes.CDLL(self.path)
        self._library.fault_name.restype = self._library.product_fault_name.restype = ctypes.c_char_p

    def _run(self, function: str, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(1000)
        if getattr(self._library, function)(*arguments, message, ctypes.c_int64(len(message))):
            raise Mistake(message.value.decode())

    def run_scheduled(self, function: str, schedule: Schedule, *arguments: int | Tensor) -> None:
        """A launch of driver_products.cpp, of numbers and of tensors' memory."""
        passed = (
            ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, Tensor) else ctypes.c_int64(argument)
            for argument in arguments
        )
        self._run(function, schedule.order, ctypes.c_uint64(schedule.seed), *passed)

    def choose(
        self, schedule: Schedule = SCHEDULES[0], multiprocessors: int = 1, idle: bool = False,
        most_shared: int = MOST_SHARED[0], capability: int = 80,
    ) -> None:  # fmt: skip
        """What the calls of backend "cuda" that follow run on; an idle device runs nothing."""
        gpu_sides.SIMULATED_SHARED_MEMORY = most_shared
        seed = ctypes.c_uint64(schedule.seed)
        self._library.choose(schedule.order, seed, multiprocessors, most_shared, capability, idle)

    def fault_names(self, function: str = "fault_name") -> list[str]:
        """Kernels in which a fault can be planted."""
        names: list[str] = []
        while name := getattr(self._library, function)(len(names)):
            names.append(name.decode())
        return names

    def run_fault(self, name: str, planted: bool, schedule: Schedule, numbers: Tensor) -> Tensor:
        """The numbers, 64 a block, each block's in reverse."""
        out = torch.full_like(numbers, float("nan"))
        arguments = (ctypes.c_void_p(numbers.data_ptr()), ctypes.c_void_p(out.data_ptr()), len(numbers) // 64)
        number = self.fault_names().index(name)
        self._run("run_fault", number, planted, schedule.order, ctypes.c_uint64(schedule.seed), *arguments)
        return out

    def run_program(self, schedule: Schedule, steps: Tensor, shared_bytes: int) -> None:
        """What programs.cuh does for steps (threads, phases, steps, 4)."""
        seed, pointer = ctypes.c_uint64(schedule.seed), ctypes.c_void_p(steps.data_ptr())
        self._run("run_program", schedule.order, seed, pointer, *steps.shape[:3], shared_bytes)

    def words(self, schedule: Schedule) -> Tensor:
        """(blocks, threads, words) of vocabulary.cuh."""
        numbers = torch.arange(4 * 96, dtype=torch.int32)
        out = torch.full((4, 96, 8), -99, dtype=torch.int32)
        pointers = ctypes.c_void_p(numbers.data_ptr()), ctypes.c_void_p(out.data_ptr())
        self._run("run_words", schedule.order, ctypes.c_uint64(schedule.seed), *pointers)
        return out

    def word(self, name: str, schedule: Schedule, words: Tensor, count: int, cluster: int = 1) -> Tensor:
        """`count` words of each thread, of 96 a block, from words (threads, n) of theirs."""
        out = torch.full((len(words), count), -99, dtype=torch.int32)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (words.contiguous(), out))
        seed = ctypes.c_uint64(schedule.seed)
        self._run("run_word", name.encode(), schedule.order, seed, *pointers, len(words) // 96, cluster)
        return out

    @contextmanager
    def traffic(self) -> Iterator[list[Place]]:
        """Of all launches in it, when it ends."""
        found: list[Place] = []
        self._library.count_traffic(1)
        try:
            yield found
            report = ctypes.create_string_buffer(2**20)
            assert not self._library.report_traffic(report, ctypes.c_int64(len(report)))
            for line in report.value.decode().splitlines():
                kernel, kind, *numbers = line.split()
                found.append(Place(kernel, kind, *map(int, numbers)))
        finally:
            self._library.count_traffic(0)

    def source_of(self, place: Place) -> str:
        """The lines of code that a place is in, from the innermost on."""
        command = ["addr2line", "-i", "-s", "-e", self.path, hex(place.code - 1)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\n", " ")

    def converted(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Floats as bfloat16 and as float16, and both of them as floats again."""
        bfloats, halves = (torch.empty(len(numbers), dtype=dtype) for dtype in (torch.bfloat16, torch.float16))
        out = torch.empty(2, len(numbers))
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (numbers, bfloats, halves, out))
        self._run("run_conversions", *pointers, len(numbers))
        return bfloats, halves, out[0], out[1]
