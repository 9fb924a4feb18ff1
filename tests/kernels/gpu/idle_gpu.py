"""A program for test_triton_driver.py: Triton compiles kernels for sm_90 and hands them to a driver that does nothing.

``python -m tests.kernels.gpu.idle_gpu LIBCUDA``; needs its folder as TRITON_LIBCUDA_PATH and in LD_LIBRARY_PATH. Prints
each call that passed and how many kernels it launched. Tensors lie on the CPU; what results hold is whatever the memory
held.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime import driver

from crossret_kernels import (
    backends,
    heterogeneous_scores,
    maxsim_scores,
    scan_scores,
    triplet_loss,
)
from crossret_kernels.gpu import triton_launch
from crossret_kernels.gpu.tuning import LEAST, Attention, SumMax
from tests.kernels.heterogeneous_attention.calls import make_layers


class IdleDriver(CudaDriver):  # type: ignore[misc]  # Triton's, which has no types
    """Triton's own driver, with a device of its own in place of torch's."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = CudaUtils(), CudaLauncher
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda _device: 0
        self.set_current_device = lambda _device: None
        self.get_device_capability = lambda _device: (9, 0)

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


def features(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)


def score(operation: Callable[..., torch.Tensor], **options: Any) -> None:
    lengths = torch.tensor([9, 2, 5, 9])
    operation(features(3, 12, 32), features(4, 9, 32), None, lengths, backend="triton", **options).sum().backward()


def lose() -> None:
    triplet_loss(torch.zeros(5, 5, requires_grad=True), negatives="hardest", backend="triton").backward()


def layer() -> None:
    sides = features(3, 12, 32), features(4, 9, 32)
    heterogeneous_scores(*sides, layers=make_layers(1, 32), backend="triton").sum().backward()


CALLS: dict[str, Callable[[], None]] = {
    "scan_scores": lambda: score(scan_scores, pooling="lse"),
    "maxsim_scores": lambda: score(maxsim_scores),
    "triplet_loss": lose,
    "heterogeneous_scores": layer,
}


def main() -> None:
    launches = ctypes.CDLL(sys.argv[1]).idle_launches
    driver.set_active(IdleDriver())
    unsupported = backends.unsupported_reason

    def reason(backend: str, *others: Any) -> str | None:
        return None if backend == "triton" else unsupported(backend, *others)

    def count(name: str, call: Callable[[], None]) -> None:
        before = launches()
        call()
        print(f"{name}: {launches() - before}", flush=True)

    small = (Attention, "TILE"), (Attention, "BLOCK"), (SumMax, "LARGEST_TILE")  # which compile sooner
    with ExitStack() as patches:
        patches.enter_context(patch.object(backends, "unsupported_reason", reason))
        for owner, size in small:
            patches.enter_context(patch.object(owner, size, LEAST))
        for name, call in CALLS.items():
            count(name, call)
        # As a version that is too new to be known launches them.
        with patch.object(triton_launch, "WHY_BY_TRITON", "tried"), patch.object(triton_launch, "_known", {}):
            triton_launch._compiled.clear()
            count("scan_scores by Triton", CALLS["scan_scores"])


if __name__ == "__main__":
    main()
