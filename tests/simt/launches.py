"""Kernels on the CPU: the driver, built once for all workers of a test run, and its launches as functions."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
COMPILER = "g++"
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
# Set where the sanitizers' runtimes are in the process: see the Makefile.
SANITIZED = "CROSSRET_SIMT_SANITIZED" in os.environ
if SANITIZED:
    FLAGS += ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    FLAGS += ["-fno-sanitize=signed-integer-overflow"]  # hinges are counted in four bytes of an int

NEGATIVES = ("hardest", "sum", "softmax")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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


class RankingLoss(ctypes.Structure):
    """`RankingLoss` of driver.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "image_ids", "caption_ids", "grads", "gradient")),
        *((name, ctypes.c_void_p) for name in ("losses", "statistics", "loss")),
        *((name, ctypes.c_int64) for name in ("row_stride", "out_stride", "grad_stride")),
        *((name, ctypes.c_double) for name in ("margin", "order")),
        *((name, ctypes.c_int) for name in ("dtype", "n_rows", "n_columns", "offset", "negatives", "mean")),
        *((name, ctypes.c_int) for name in ("multiprocessors", "schedule")),
        ("seed", ctypes.c_uint64),
    )


def build(directory: Path) -> Path:
    """The driver's library, compiled by the first who asks for it."""
    if platform.machine() != "x86_64":
        pytest.skip("threads are switched by code for x86-64")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    library = directory / "simt.so"
    with (directory / "simt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            made = library.with_suffix(".made")
            include = ["-I", str(ROOT / "csrc"), "-I", str(ROOT / "tests" / "simt")]
            command = [COMPILER, *FLAGS, *include, str(ROOT / "tests" / "simt" / "driver.cpp"), "-o", str(made)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr
            made.rename(library)
    return library


class Device:
    """The driver's launches; a mistake of a kernel is raised."""

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        self._library = ctypes.CDLL(self.path)
        self._library.fault_name.restype = ctypes.c_char_p

    def _run(self, function: str, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(1000)
        if getattr(self._library, function)(*arguments, message, ctypes.c_int64(len(message))):
            raise Mistake(message.value.decode())

    def fault_names(self) -> list[str]:
        """Kernels in which a fault can be planted."""
        names: list[str] = []
        while name := self._library.fault_name(len(names)):
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

    def word(self, name: str, schedule: Schedule, words: Tensor, count: int) -> Tensor:
        """`count` words of each thread, of 96 a block, from words (threads, n) of theirs."""
        out = torch.full((len(words), count), -99, dtype=torch.int32)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (words.contiguous(), out))
        seed = ctypes.c_uint64(schedule.seed)
        self._run("run_word", name.encode(), schedule.order, seed, *pointers, len(words) // 96)
        return out

    def converted(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Floats as bfloat16 and as float16, and both of them as floats again."""
        bfloats, halves = (torch.empty(len(numbers), dtype=dtype) for dtype in (torch.bfloat16, torch.float16))
        out = torch.empty(2, len(numbers))
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (numbers, bfloats, halves, out))
        self._run("run_conversions", *pointers, len(numbers))
        return bfloats, halves, out[0], out[1]

    def ranking_loss(
        self,
        scores: Tensor,
        *,
        margin: float,
        negatives: str,
        p: float,
        image_ids: list[int] | None = None,
        caption_ids: list[int] | None = None,
        positive_offset: int = 0,
        mean: bool = False,
        grads: Tensor | None = None,
        multiprocessors: int = 1,
        out_padding: int = 0,
        schedule: Schedule = SCHEDULES[0],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(losses, their sum or mean, gradient) of scores with at least one row; grads are ∂L/∂losses, or one number.

        Rows of the gradient are made `out_padding` elements further apart than they are long.
        """
        n_rows, n_columns = scores.shape
        kinds = [None if ids is None else torch.tensor(ids, dtype=torch.int64) for ids in (image_ids, caption_ids)]
        through = torch.ones(()) if grads is None else grads
        losses, statistics, loss = (torch.full(shape, float("nan")) for shape in ((n_rows,), (4, n_rows), ()))
        gradient = torch.full((n_rows, n_columns + out_padding), float("nan"), dtype=scores.dtype)
        call = RankingLoss(
            scores=scores.data_ptr(),
            image_ids=None if kinds[0] is None else kinds[0].data_ptr(),
            caption_ids=None if kinds[1] is None else kinds[1].data_ptr(),
            grads=through.data_ptr(),
            gradient=gradient.data_ptr(),
            losses=losses.data_ptr(),
            statistics=statistics.data_ptr(),
            loss=loss.data_ptr(),
            row_stride=scores.stride(0),
            out_stride=gradient.stride(0),
            grad_stride=through.stride(0) if through.dim() else 0,
            margin=margin,
            order=p,
            dtype=DTYPES.index(scores.dtype),
            n_rows=n_rows,
            n_columns=n_columns,
            offset=positive_offset,
            negatives=NEGATIVES.index(negatives),
            mean=mean,
            multiprocessors=multiprocessors,
            schedule=schedule.order,
            seed=schedule.seed,
        )
        self._run("run_ranking_loss", ctypes.byref(call))
        return losses, loss, gradient[:, :n_columns]
