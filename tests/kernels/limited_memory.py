"""A program for test_memory.py: scores large batches where the process may map 64 MiB beside inputs and results.

``python -m tests.kernels.limited_memory BACKEND CASE…``; needs MALLOC_ARENA_MAX=1, as every further arena of the
allocator reserves 64 MiB of addresses. Beyond the limit allocation fails, and with it the program. Prints each case
that passed.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from crossret_kernels import maxsim_scores, scan_scores, triplet_loss

LIMIT = 64 * 2**20
T2I = {"direction": "t2i", "pooling": "lse"}
I2T = {"direction": "i2t", "pooling": "avg"}
FORWARD = (1000, 8, 16), (5000, 6, 16)
BACKWARD = (256, 36, 32), (256, 20, 32)  # the attention would take 180 MiB
LONG = (192, 36, 1024), (192, 20, 1024)  # in half precision 42 MiB of gradients, which float32 sums would double
LOSS = "loss"
CASES: dict[str, tuple[Any, ...]] = {
    "forward t2i": (scan_scores, *FORWARD, torch.float32, T2I),
    "forward i2t": (scan_scores, *FORWARD, torch.bfloat16, I2T),
    "forward maxsim": (maxsim_scores, *FORWARD, torch.float32, {}),
    "backward float32 t2i": (scan_scores, *BACKWARD, torch.float32, T2I),
    "backward float32 i2t": (scan_scores, *BACKWARD, torch.float32, I2T),
    "backward float32 maxsim": (maxsim_scores, *BACKWARD, torch.float32, {}),
    "backward half t2i": (scan_scores, *LONG, torch.bfloat16, T2I),
    "backward half i2t": (scan_scores, *LONG, torch.float16, I2T),
    "backward half maxsim": (maxsim_scores, *LONG, torch.bfloat16, {"direction": "i2t"}),
}


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE


def run(backend: str, case: str) -> None:
    function, images, captions, dtype, options = CASES[case]
    backward = case.startswith("backward")
    generator = torch.Generator().manual_seed(0)
    sides = [torch.randn(shape, generator=generator).to(dtype).requires_grad_(backward) for shape in (images, captions)]
    grads = torch.randn(images[0], captions[0], generator=generator)
    if dtype != torch.float32:
        grads[torch.rand(grads.shape, generator=generator) < 0.99] = 0

    def compute(count: int | None) -> None:
        """The first `count` items of both sides."""
        part = [side[:count] for side in sides]
        scores = function(*part, backend=backend, **options)
        if backward:
            torch.autograd.grad(scores, part, grads[: len(part[0]), : len(part[1])])

    limited(compute, grads.nbytes + sum(side.nbytes for side in sides if backward))


def run_loss(backend: str) -> None:
    scores = torch.randn(5000, 5000, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def compute(count: int | None) -> None:
        part = scores[:count, :count]
        torch.autograd.grad(triplet_loss(part, negatives="softmax", backend=backend), part)

    limited(compute, scores.nbytes)


def limited(compute: Callable[[int | None], None], results: int) -> None:
    """All of it, results of so many bytes, where no more than `LIMIT` can be mapped besides."""
    compute(16)  # loads code, starts threads
    ctypes.CDLL(None).malloc_trim(0)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + results + LIMIT, resource.RLIM_INFINITY))
    compute(None)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in sys.argv[2:]:
        run_loss(sys.argv[1]) if name == LOSS else run(sys.argv[1], name)
        print(name)
