"""Costs of calls of "triton" and "cuda" to the host, on any machine: python -m benchmarks.gpu.host [PART OF NAME].

Compiled kernels and products are replaced by nothing ("cuda" is the library that runs its kernels on the CPU for tests,
which g++ builds first, and runs none), and tensors lie on the CPU in the device's place. What is left
is what a training step or a search waits for while the device has nothing to do: checks, plans, allocations, the
launches' own bookkeeping. Lengths are new at every call, as a training's batches are. What depends on
D is the device's work alone: features are narrow, so that the CPU's zeros cost no more than a launch.

Requests of "triton" to the device and its allocator are counted, too, with their costs by `PRICES`.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossret_kernels import backends, maxsim_scores, operations, scan_scores, triplet_loss
from crossret_kernels.cross_attention.cuda import backward as cuda_backward
from crossret_kernels.cross_attention.triton import chunks, feature_gradients
from crossret_kernels.gpu import sides, triton_launch
from tests.simt.launches import Device
from tests.simt.library import build

CALLS, ROUNDS = 300, 7
BATCHES = 400  # batches with lengths of their own

DIM = 16
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt(3)

# Host µs for one of a kind: usually, and on a virtual machine with an H100 where a plain operation of
# PyTorch took 33; what reaches the device by another way was not told apart there.
PRICES: dict[str, tuple[float, float]] = {
    "kernels": (3, 33), "products": (9, 33), "operations": (7, 33), "memsets": (6, 33), "copies": (10, 33),
    "allocations": (1.5, 1.5),
}  # fmt: skip
DEVICE = ("kernels", "products", "operations", "memsets", "copies")  # kinds of launches

Step = Callable[[], Any]


def keep_memory() -> None:
    """Has the C library keep what is freed, as PyTorch keeps a device's memory: workspaces are of many megabytes."""
    library = ctypes.CDLL(None)
    for parameter, value in ((M_TRIM_THRESHOLD, 2**30), (M_MMAP_MAX, 0)):  # its threshold would be of 32 MiB at most
        if not library.mallopt(parameter, value):
            raise OSError(f"mallopt({parameter}, {value}) failed")


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations on features by the kinds of `PRICES`; those on lengths alone are the host's."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **kwargs or {})
        returns, name = operation._schema.returns, operation._schema.name.removeprefix("aten::")
        is_view = any(x.alias_info is not None and not x.alias_info.is_write for x in returns)
        if is_view or not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        if returns[0].alias_info is None and "out" not in (kwargs or {}):
            self.counts["allocations"] += 1
        if re.match("zero|fill|ones|full", name):
            self.counts["memsets"] += 1
        elif re.match("copy|clone|_to_copy", name):
            self.counts["copies"] += 1
        elif not re.match("empty|new_empty", name):
            self.counts["operations"] += 1
        return made


def counted(step: Step) -> Counter[str]:
    """How many of each kind of `PRICES` a call takes, inside `nothing_launched`, of the second one."""
    counts: Counter[str] = Counter()
    compiled, multiply, beside = triton_launch.compiled, chunks.multiply, sides.beside

    def counting(kind: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counts[kind] += 1
            return usual(*arguments)

        return call

    def lengths_beside(device: torch.device, *told: Tensor | None) -> list[Tensor | None]:
        counts["copies"] += any(x is not None for x in told)  # from the host, all in one
        return beside(device, *told)

    with (
        patch.object(triton_launch, "compiled", lambda *of: counting("kernels", compiled(*of))),
        patch.object(triton_launch, "_compiled", {}),
        patch.object(triton_launch, "_known", {}),
        patch.object(chunks, "multiply", counting("products", multiply)),
        patch.object(feature_gradients, "multiply", counting("products", multiply)),
        patch.object(sides, "beside", lengths_beside),
        patch.object(operations, "nothing_dispatches", lambda _: True),  # behaves so where no mode looks on
    ):
        step()
        counts.clear()
        with Operations(counts):
            step()
    return counts


def cost(counts: Counter[str], measured: bool) -> float:
    """Sum of the prices of these, in µs."""
    return sum(prices[measured] * counts[kind] for kind, prices in PRICES.items())


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
    """Loads kernels that serve "cuda" and do nothing."""
    with tempfile.TemporaryDirectory() as directory:
        Device(build(Path(directory))).choose(idle=True)


def lengths(count: int, shortest: int, longest: int, batches: int) -> Iterator[Tensor]:
    """Lengths of ever new batches, or of few again and again."""
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


def training(batches: int) -> Step:
    """Scores of the same items, their hinges with the hardest negatives, and gradients."""
    sides = [torch.zeros(128, n, DIM, dtype=torch.bfloat16, requires_grad=True) for n in (36, 20)]
    of_words, one = lengths(128, 6, 20, batches), torch.ones(())

    def step() -> None:
        scores = scan_scores(*sides, None, next(of_words), backend="triton")
        torch.autograd.grad(triplet_loss(scores, backend="triton"), sides, one)

    return step


def maxsim(batches: int) -> Step:
    """A query of 32 tokens by 1,000 documents of up to 300."""
    documents, query = (torch.zeros(n, rows, DIM, dtype=torch.bfloat16) for n, rows in ((1000, 300), (1, 32)))
    of_documents = lengths(1000, 100, 300, batches)
    return lambda: maxsim_scores(documents, query, next(of_documents), backend="triton")


def loss(negatives: str) -> Step:
    """A loss of 128 × 128 scores, and its gradient."""
    scores = torch.zeros(128, 128, requires_grad=True)
    one = torch.ones(())

    def step() -> None:
        torch.autograd.grad(triplet_loss(scores, negatives=negatives, backend="triton"), scores, one)

    return step


CASES: dict[str, tuple[Callable[[], Step], float]] = {  # with the target in µs
    "scan_scores, lengths new": (lambda: scan(BATCHES, False), 60),
    "scan_scores, forward + backward, lengths new": (lambda: scan(BATCHES, True), 280),
    "scan_scores, triplet_loss, gradients, lengths new": (lambda: training(BATCHES), 340),
    "maxsim_scores, 1 x 1,000, lengths new": (lambda: maxsim(BATCHES), 60),
    "triplet_loss, hardest, forward + backward": (lambda: loss("hardest"), 60),
    "triplet_loss, softmax, forward + backward": (lambda: loss("softmax"), 60),
    "cuda: scan_scores, lengths new": (lambda: scan(BATCHES, False, "cuda"), 60),
    "cuda: scan_scores, forward + backward, lengths new": (lambda: scan(BATCHES, True, "cuda"), 280),
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
        print(f"\n{'on the device':52} {'launches':>8}  {'  '.join(PRICES)}     µs: usual  measured")
        for name, (make, _) in cases.items():
            if not name.startswith("cuda"):
                counts = counted(make())
                kinds = "  ".join(f"{counts[kind]:{len(kind)}}" for kind in PRICES)
                costs = f"{cost(counts, measured=False):9.0f} {cost(counts, measured=True):9.0f}"
                print(f"{name:52} {sum(counts[kind] for kind in DEVICE):8}  {kinds} {costs}")


if __name__ == "__main__":
    main()
