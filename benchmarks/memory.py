"""Peak memory of a call; as a program, of one large call in a fresh process."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from crossret_kernels import scan_scores

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def peak_mebibytes(call: Callable[[], Tensor | Sequence[Tensor]]) -> float:
    """MiB by which resident memory rose at most while `call` ran, less its results; needs Linux's /proc.

    Freed memory that the allocator kept is given back first, so that a call that takes it again is seen to.
    """
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")
    before = _kibibytes("VmRSS")
    results = call()
    kept = [results] if isinstance(results, Tensor) else results
    return (_kibibytes("VmHWM") - before) / 1024 - sum(result.nbytes for result in kept) / 2**20


def _kibibytes(field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match is not None
    return int(match[1])


def large_call(direction: str, dtype: torch.dtype, n_images: int, n_captions: int, dim: int) -> float:
    """MiB beyond inputs, scores and gradients, all pairs scored; "backward" is of a loss in which every pair counts."""
    regions, words = torch.randn(n_images, 36, dim).to(dtype), torch.randn(n_captions, 20, dim).to(dtype)
    if direction == "forward":
        scan_scores(regions[:2], words[:2])  # what is set up once a process is no workspace
        return peak_mebibytes(lambda: scan_scores(regions, words))
    leaves = [regions.requires_grad_(), words.requires_grad_()]
    torch.autograd.grad(scan_scores(regions[:2], words[:2]).sum(), leaves)
    scores = scan_scores(regions, words)
    weights = torch.randn_like(scores)
    return peak_mebibytes(lambda: torch.autograd.grad(scores, leaves, weights))


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(large_call(sys.argv[1], getattr(torch, sys.argv[2]), *map(int, sys.argv[3:])))
