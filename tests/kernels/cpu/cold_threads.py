"""A program for test_threads.py: the first calls of a process come from several threads at once, in ten processes.

``python -m tests.kernels.cpu.cold_threads`` exits 0 if every thread's results have the bits of a process of one thread.
The processes are forked from one that has called nothing: lazily imported kernels, their caches and the threads of
PyTorch are cold in each.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
import torch._dynamo  # which takes seconds
from torch import Tensor

import crossret_kernels

TIMES, THREADS, SECONDS = 10, 3, 60
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "scan_scores": [{"backend": "cpu"}, {"backend": "torch"}, {"normalize": True, "direction": "i2t"}],
    "maxsim_scores": [{"backend": "cpu", "normalize": True}, {"backend": "torch"}],
    "scan_attend": [{"pairs": torch.tensor([[0, 1], [7, 3]])}],
    "scan_topk": [{"k": 3}],
    "attention_pool": [{}],
    "triplet_loss": [{"negatives": "softmax"}],
    "infonce_loss": [{"scale": 10.0}],
    "sigmoid_loss": [{"scale": 10.0, "bias": -10.0}],
}
CALLS = [(name, options) for name, each in _OPTIONS.items() for options in each]


def inputs_of(name: str) -> list[Tensor]:
    """Arguments of a size that takes every thread, from whole numbers and quotients alone.

    Functions such as ``sin`` are MKL's, whose first calls have other last bits when they come from several threads.
    """
    shapes = {"attention_pool": [(8, 24, 64), (8, 24, 4)]}.get(name, [(8, 24, 64)] * 2)
    shapes = [(50, 50)] if name.endswith("_loss") else shapes
    numbers = torch.arange(8 * 24 * 64)
    return [
        ((numbers[: torch.Size(shape).numel()] * prime % 1009).float() / 504 - 1).view(shape).requires_grad_()
        for prime, shape in zip((7919, 6389), shapes, strict=False)
    ]


def bits_of(call: tuple[str, dict[str, Any]]) -> str:
    """A fingerprint of what a call gives, and of its gradients."""
    name, options = call
    leaves = inputs_of(name)
    made = getattr(crossret_kernels, name)(*leaves, **options)
    results = [*made] if isinstance(made, tuple) else [made]
    derived = [x.square().sum() for x in results if x.requires_grad]
    results += torch.autograd.grad(derived, leaves) if derived else []
    found = hashlib.sha256()
    for result in results:
        found.update(result.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def results(threads: int) -> list[set[str]]:
    """Of every call the fingerprints that threads got, each of which begins with another call."""
    barrier = Barrier(threads)

    def work(number: int) -> dict[int, str]:
        barrier.wait()
        return {place % len(CALLS): bits_of(CALLS[place % len(CALLS)]) for place in range(number, number + len(CALLS))}

    with ThreadPoolExecutor(threads) as pool:
        every = list(pool.map(work, range(threads)))
    return [{own[place] for own in every} for place in range(len(CALLS))]


def in_a_child(threads: int) -> str:
    """What ``results`` are in a process of its own, which is killed after a while."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.write(writing, repr([sorted(each) for each in results(threads)]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found if code == 0 else f"the child ended with {code}"


def main() -> None:
    expected = in_a_child(1)
    assert expected.startswith("["), expected
    for _ in range(TIMES):
        found = in_a_child(THREADS)
        if found != expected:
            sys.exit(f"{found}\ninstead of\n{expected}")


if __name__ == "__main__":
    main()
