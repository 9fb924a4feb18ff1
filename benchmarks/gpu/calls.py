"""The calls that are looked into, by name: with inputs on the device, to be made again and again.

python -m benchmarks.gpu.calls NAME makes one three times, for a profiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import SETTINGS, WHOLE_TEST_SET, Case
from benchmarks.gpu.cases import ONE_QUERY
from benchmarks.gpu.checks import Check, prepared
from benchmarks.gpu.implementations import maxsim, scan
from benchmarks.gpu.inputs import DTYPES
from benchmarks.gpu.scores import step
from crossret_kernels import triplet_loss

Call = Callable[[], Any]


def scores(backend: str, setting: str | None, case: Case, training: bool = False) -> Callable[[torch.device], Call]:
    """Calls of bfloat16 features."""

    def prepare(device: torch.device) -> Call:
        inputs = case.inputs(device).to(torch.bfloat16)
        score = maxsim(backend) if setting is None else scan(backend, SETTINGS[setting])
        if not training:
            return lambda: score(inputs)
        inputs.regions.requires_grad_()
        inputs.words.requires_grad_()
        return lambda: step(score, inputs)

    return prepare


def loss(negatives: str) -> Callable[[torch.device], Call]:
    """A loss of 8,192 × 8,192 scores, with its gradient."""

    def prepare(device: torch.device) -> Call:
        matrix = (torch.randn(8192, 8192, device=device) * 0.1).requires_grad_()
        return lambda: torch.autograd.grad(triplet_loss(matrix, negatives=negatives, backend="triton"), matrix)

    return prepare


def operation(check: Check) -> Callable[[torch.device], Call]:
    """Scores of 128 × 128 items, with gradients."""

    def prepare(device: torch.device) -> Call:
        dtype = DTYPES[check.precision]
        sides, call = prepared(check._replace(items=(128, 128)), dtype, check.backend, device, dtype)
        return lambda: torch.autograd.grad(call().float().sum(), sides)

    return prepare


SMALL, MIDDLE = Case(128, 128), Case(512, 512)
CALLS_BY_NAME: dict[str, Callable[[torch.device], Call]] = {
    **{
        f"{backend} {way} 1000x5000": scores(backend, way, WHOLE_TEST_SET)
        for way in SETTINGS
        for backend in ("triton", "cuda")
    },
    **{
        f"{backend} {way} step {case.n_images}": scores(backend, way, case, training=True)
        for case in (SMALL, MIDDLE)
        for way in SETTINGS
        for backend in ("triton", "cuda")
    },
    "triton Sum-Max 1x1000": scores("triton", None, ONE_QUERY),
    "triton Sum-Max step 256": scores("triton", None, Case(256, 256, 128, (180, 180), (32, 32)), True),
    **{f"triton loss {negatives}": loss(negatives) for negatives in ("hardest", "softmax")},
    "triton HAN": operation(Check("heterogeneous_scores", (36, 20, 1024), (("heads", 8),), "bfloat16", "triton")),
}


def main() -> None:
    call = CALLS_BY_NAME[sys.argv[1]](torch.device("cuda"))
    for _ in range(3):
        call()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
