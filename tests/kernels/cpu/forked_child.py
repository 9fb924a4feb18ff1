"""A program for test_threads.py: scores and gradients in a forked child, bit for bit those of its parent's threads.

``python -m tests.kernels.cpu.forked_child`` exits 0 if so; the child has a minute, then it is killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time

import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores

SECONDS = 60


def batches() -> list[list[Tensor]]:
    """Large enough that calls take every thread, and that torch would set their gradients to zero by more than one."""
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(n, 36, 128, generator=generator).to(dtype).requires_grad_() for n in (24, 40)]
        for dtype in (torch.float32, torch.bfloat16)
    ]


def results(batches: list[list[Tensor]]) -> list[bytes]:
    """The bits of scores and gradients, by no operation of torch that takes threads."""
    collected: list[Tensor] = []
    for function, sides in itertools.product((scan_scores, maxsim_scores), batches):
        scores = function(*sides, normalize=True, backend="cpu")
        collected += [scores.detach(), *torch.autograd.grad(scores.square().sum(), sides)]
    return [tensor.view(torch.uint8).numpy().tobytes() for tensor in collected]


def main() -> None:
    torch.set_num_threads(2)
    threads = len(os.listdir("/proc/self/task"))
    inputs = batches()
    expected = results(inputs)
    assert len(os.listdir("/proc/self/task")) > threads, "the parent has started no thread"
    child = os.fork()
    if child == 0:
        os._exit(0 if results(inputs) == expected else 3)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            sys.exit(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sys.exit("the child hangs")


if __name__ == "__main__":
    main()
