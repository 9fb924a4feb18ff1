"""Backends by name: which can serve a call, and why one cannot; loads the native library."""

from __future__ import annotations

import os
from pathlib import Path

import torch

BACKENDS = ("cpu", "triton", "cuda", "torch", "reference")
ENVIRONMENT_VARIABLE = "CROSSRET_BACKEND"
NATIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class UnsupportedByBackend(RuntimeError):
    """A backend named by the caller cannot serve the call; the message says why."""


def _load_native() -> str | None:
    """Loads the compiled kernels; returns why they are absent, None when they are there."""
    paths = sorted(Path(__file__).parent.glob("_native*.so"))
    if not paths:
        return "the native library was not built (no _native*.so in the package)"
    try:
        torch.ops.load_library(str(paths[0]))
    except OSError as error:
        return f"the native library does not load: {error}"
    return None


NATIVE_MISSING = _load_native()


def unsupported_reason(backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why `backend` cannot score features of this device and dtype; None when it can."""
    if backend in ("torch", "reference"):
        return None
    if backend in ("triton", "cuda"):
        return "these kernels are not built in this version"
    if device.type != "cpu":
        return f"it runs on the CPU but the features are on {device}"
    if dtype not in NATIVE_DTYPES:
        return f"it takes float32, bfloat16 and float16 features, not {dtype}"
    return NATIVE_MISSING


def select_backend(requested: str | None, device: torch.device, dtype: torch.dtype, by_torch: str | None = None) -> str:
    """The backend that serves a call: named by the argument, else by CROSSRET_BACKEND, else the fastest that can.

    `by_torch` is why PyTorch operations alone can serve the call, whatever its features; None where others can too.

    Raises ValueError for an unknown name and `UnsupportedByBackend` when the named backend cannot serve the call.
    """
    name = requested if requested is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    if name is None:
        return "cpu" if by_torch is None and unsupported_reason("cpu", device, dtype) is None else "torch"
    if name not in BACKENDS:
        source = "backend" if requested is not None else ENVIRONMENT_VARIABLE
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}, not {name!r}")
    reason = unsupported_reason(name, device, dtype)
    if reason is None and by_torch is not None and name not in ("torch", "reference"):
        reason = by_torch
    if reason is not None:
        raise UnsupportedByBackend(f"backend {name!r} cannot serve this call: {reason}")
    return name
