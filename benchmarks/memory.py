"""Peak memory of a call; as a program, of one large call in a fresh process."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.checks import check_gradients, check_scores
from benchmarks.loops import scan_loop
from crossret_kernels import scan_scores

R = TypeVar("R", bound=Tensor | Sequence[Tensor])

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
OPTIONS: dict[str, Any] = {"direction": "t2i", "lambda_softmax": 9.0, "pooling": "avg"}


def peak_mebibytes(call: Callable[[], R]) -> tuple[float, R]:
    """MiB by which resident memory rose at most while `call` ran, less its results, and those; needs Linux's /proc.

    Freed memory that the allocator kept is given back first, so that a call that takes it again is seen to.
    """
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5", encoding="ascii")
    before = _kibibytes("VmRSS")
    results = call()
    kept = [results] if isinstance(results, Tensor) else results
    return (_kibibytes("VmHWM") - before) / 1024 - sum(result.nbytes for result in kept) / 2**20, results


def _kibibytes(field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match is not None
    return int(match[1])


def large_call(direction: str, dtype: torch.dtype, case: Case) -> dict[str, float]:
    """All pairs of a case scored; "backward" is of a loss in which every pair counts. What it gives is checked.

    Returns:
        "peak_mebibytes" beyond inputs, scores and gradients, "flop" of the similarity product, "bytes" of features and
        scores and, backward, of their gradients.
    """
    inputs = case.inputs().to(dtype)
    regions, words = inputs.regions, inputs.words
    if direction == "forward":
        scan_scores(regions[:2], words[:2], **OPTIONS)  # a process's first call sets up what is no workspace
        peak, scores = peak_mebibytes(lambda: scan_scores(regions, words, **OPTIONS))
        check_scores(scores, inputs, lambda chosen: scan_loop(chosen, **OPTIONS))
        return {"peak_mebibytes": peak, "flop": inputs.flop, "bytes": inputs.bytes}
    leaves = [regions.requires_grad_(), words.requires_grad_()]
    torch.autograd.grad(scan_scores(regions[:2], words[:2], **OPTIONS).sum(), leaves)
    scores = scan_scores(regions, words, **OPTIONS)
    weights = torch.randn_like(scores)
    peak, gradients = peak_mebibytes(lambda: torch.autograd.grad(scores, leaves, weights))
    check_gradients(gradients, weights, inputs, lambda chosen: scan_loop(chosen, **OPTIONS))
    return {"peak_mebibytes": peak, "flop": inputs.flop, "bytes": 2 * inputs.bytes}


if __name__ == "__main__":
    torch.set_num_threads(2)
    sizes = (int(size) for size in sys.argv[3:])
    print(json.dumps(large_call(sys.argv[1], getattr(torch, sys.argv[2]), Case(*sizes, words=(20, 20)))))
