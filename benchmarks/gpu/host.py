"""Times what calls of "triton" and "cuda" cost the host, on any machine: python -m benchmarks.gpu.host [PART OF NAME].

Compiled kernels and products are replaced by nothing ("cuda" is the library that runs its kernels on the CPU for tests,
which g++ builds first, and runs none), and tensors lie on the CPU in the device's place. What is left
is what a training step or a search waits for while the device has nothing to do: checks, plans, allocations, the
launches' own bookkeeping. Lengths are new at every call, as a training's batches are. What depends on
D is the device's work alone: features are narrow, so that the CPU's zeros cost no more than a launch.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from crossret_kernels import backends, maxsim_scores, scan_scores, triplet_loss
from crossret_kernels.cross_attention.cuda import backward as cuda_backward
from crossret_kernels.cross_attention.triton import chunks, feature_gradients
from crossret_kernels.gpu import triton_launch
from tests.simt.launches import Device
from tests.simt.library import build

CALLS, ROUNDS = 300, 7
BATCHES = 400  # of lengths

DIM = 16
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)

Step = Callable[[], Any]


def keep_memory() -> None:
    """Has the C library keep what is freed, as PyTorch keeps a device's memory: workspaces are of many megabytes."""
    library = ctypes.CDLL(None)
    for parameter, value in ((M_TRIM_THRESHOLD, 2**30), (M_MMAP_MAX, 0)):  # its threshold would be of 32 MiB at most
        if not library.mallopt(parameter, value):
            raise OSError(f"mallopt({parameter}, {value}) failed")


@contextmanager
def nothing_launched() -> Iterator[None]:
    """Calls of both backends take tensors of the CPU and leave results as the memory was."""

    def nothing(*_: Any) -> None:
        return None

    def product(left: Tensor, right: Tensor) -> Tensor:
        return torch.empty(left.size(0), right.size(1))

    def compiled(*_: Any) -> Callable[..., None]:
        return nothing

    unsupported = backends.unsupported_reason

    def reason(backend: str, *others: Any) -> str | None:
        return None if backend in ("triton", "cuda") else unsupported(backend, *others)

    with (
        patch.object(triton_launch, "compiled", compiled),
        patch.object(triton_launch, "_compiled", {}),
        patch.object(triton_launch, "_known", {}),
        patch.object(backends, "unsupported_reason", reason),
        patch.object(chunks, "multiply", nothing),
        patch.object(feature_gradients, "multiply", nothing),
        patch.object(cuda_backward, "_product", product),
    ):
        yield


def load_idle_kernels() -> None:
    """What serves "cuda"."""
    with tempfile.TemporaryDirectory() as directory:
        Device(build(Path(directory))).choose(idle=True)


def lengths(count: int, shortest: int, longest: int, batches: int) -> Iterator[Tensor]:
    """Of ever new batches, or of the same again and again."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(shortest, longest + 1, (count,), generator=generator) for _ in range(batches)]
    for own in drawn:
        own[0] = longest
    return itertools.cycle(drawn)


def scan(batches: int, gradients: bool, backend: str = "triton") -> Step:
    """128 images of 36 regions by 128 captions of 6 to 20 words."""
    regions, words = (torch.zeros(128, n, DIM, dtype=torch.bfloat16, requires_grad=gradients) for n in (36, 20))
    of_words = lengths(128, 6, 20, batches)
    grad = torch.zeros(128, 128)

    def step() -> None:
        scores = scan_scores(regions, words, None, next(of_words), backend=backend)
        if gradients:
            torch.autograd.grad(scores, (regions, words), grad)

    return step


def maxsim(batches: int, backend: str = "triton") -> Step:
    """A query of 32 tokens by 1,000 documents of up to 300."""
    documents, query = (torch.zeros(n, rows, DIM, dtype=torch.bfloat16) for n, rows in ((1000, 300), (1, 32)))
    of_documents = lengths(1000, 100, 300, batches)
    return lambda: maxsim_scores(documents, query, next(of_documents), backend=backend)


def loss(negatives: str, backend: str = "triton") -> Step:
    """Of 128 × 128 scores, and its gradient."""
    scores = torch.zeros(128, 128, requires_grad=True)
    one = torch.ones(())

    def step() -> None:
        torch.autograd.grad(triplet_loss(scores, negatives=negatives, backend=backend), scores, one)

    return step


CASES: dict[str, tuple[Callable[[], Step], float]] = {  # with the target in µs
    "scan_scores, lengths new": (lambda: scan(BATCHES, False), 60),
    "scan_scores, forward + backward, lengths new": (lambda: scan(BATCHES, True), 280),
    "maxsim_scores, 1 x 1,000, lengths new": (lambda: maxsim(BATCHES), 60),
    "triplet_loss, hardest, forward + backward": (lambda: loss("hardest"), 60),
    "triplet_loss, softmax, forward + backward": (lambda: loss("softmax"), 60),
    "cuda: scan_scores, lengths new": (lambda: scan(BATCHES, False, "cuda"), 60),
    "cuda: scan_scores, forward + backward, lengths new": (lambda: scan(BATCHES, True, "cuda"), 280),
    "cuda: maxsim_scores, 1 x 1,000, lengths new": (lambda: maxsim(BATCHES, "cuda"), 60),
    "cuda: triplet_loss, hardest, forward + backward": (lambda: loss("hardest", "cuda"), 50),
    "cuda: triplet_loss, softmax, forward + backward": (lambda: loss("softmax", "cuda"), 50),
}


def microseconds(step: Step) -> tuple[float, float]:
    """(the least, the median) of some rounds' averages."""
    rounds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(CALLS):
            step()
        rounds.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(rounds[1:]), statistics.median(rounds[1:])


def main() -> None:
    torch.set_num_threads(1)
    keep_memory()
    cases = {name: case for name, case in CASES.items() if len(sys.argv) < 2 or sys.argv[1] in name}
    if any(name.startswith("cuda") for name in cases):
        load_idle_kernels()
    with nothing_launched():
        print(f"{'host time, µs':52} {'least':>8} {'median':>8} {'target':>8}")
        for name, (make, target) in cases.items():
            least, median = microseconds(make())
            print(f"{name:52} {least:8.1f} {median:8.1f} {target:8.0f}")


if __name__ == "__main__":
    main()
