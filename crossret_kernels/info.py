"""``python -m crossret_kernels.info``: what was built, what will run, and why."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from importlib.metadata import version

import numpy as np
import torch

from crossret_kernels import fastest
from crossret_kernels.backends import (
    BACKENDS,
    CUDA_ARCHITECTURES,
    CUDA_MISSING,
    ENVIRONMENT_VARIABLE,
    INTERPRETED,
    LEAST_CAPABILITY,
    NATIVE_MISSING,
    PACKAGE,
    TRITON_MISSING,
    named_backend,
    select_backend,
    unsupported_reason,
)
from crossret_kernels.contrastive_loss import op as contrastive_loss
from crossret_kernels.cross_attention import op as cross_attention
from crossret_kernels.cross_attention import scan_attend
from crossret_kernels.heterogeneous_attention import kernels as heterogeneous_attention
from crossret_kernels.inputs.options import DIRECTIONS
from crossret_kernels.maxsim import op as maxsim
from crossret_kernels.ranking_loss import op as ranking_loss

if TRITON_MISSING is None:
    from crossret_kernels.gpu.triton_launch import WHY_BY_TRITON


_IN_TORCH = ("torch", "reference")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Public functions by the backends that have a row for them; all of one row go through the same table.
OPERATIONS = {
    ("scan_scores", "scan_topk"): tuple(cross_attention.SCORES),
    ("maxsim_scores", "maxsim_topk", "late_interaction"): tuple(maxsim.SCORES),
    ("maxsim_argmax",): tuple(maxsim.ARGMAX),
    ("triplet_loss",): tuple(ranking_loss.LOSSES),
    ("infonce_loss", "sigmoid_loss"): tuple(contrastive_loss.INFONCE),
    ("scan_attend", "scan_attention", "scan_contributions"): (*scan_attend.KERNELS, *_IN_TORCH),
    ("gated_attention_scores", "gated_attention_weights"): _IN_TORCH,
    ("heterogeneous_scores",): (*heterogeneous_attention.KERNELS, *_IN_TORCH),
    ("heterogeneous_attention_weights",): ("cpu", *_IN_TORCH),
    ("attention_pool", "attention_pool_weights"): _IN_TORCH,
}


def describe() -> str:
    """A few lines on this installation: where it is, versions, native kernels, backends by device and dtype."""
    lines = [f"crossret_kernels in {PACKAGE}"]
    lines.append(f"torch {torch.__version__}, numpy {np.__version__}, {torch.get_num_threads()} threads")
    if NATIVE_MISSING is None:
        lines.append(f"native CPU kernels: {torch.ops.crossret.cpu_isas()}; {_selected_isa()} (CROSSRET_CPU_ISA)")
    else:
        lines.append(f"native CPU kernels: none, {NATIVE_MISSING}")
    cuda_kernels = f"compute capability {CUDA_ARCHITECTURES}" if CUDA_MISSING is None else f"none, {CUDA_MISSING}"
    lines.append(f"native CUDA kernels: {cuda_kernels}")
    lines.append(_triton())
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    for device in devices:
        for dtype in _DTYPES:
            reasons = {backend: unsupported_reason(backend, device, dtype) for backend in BACKENDS}
            refusals = "".join(f"\n    not {name}: {reason}" for name, reason in reasons.items() if reason is not None)
            lines.append(f"{device} {dtype}: {_selected_backend(device, dtype)}{refusals}")
        lines += _operation_lines(device)
    lines += [
        "which kernels of stacked cross attention are taken on a GPU, by what was measured on one:",
        *(f"  {line}" for line in fastest.lines()),
    ]
    variable = os.environ.get(ENVIRONMENT_VARIABLE)
    preference = f"{variable}, for what it can serve" if variable else "not set"
    lines.append(f"{ENVIRONMENT_VARIABLE}: {preference}")
    return "\n".join(lines)


def _triton() -> str:
    if TRITON_MISSING is not None:
        return TRITON_MISSING
    least = ".".join(str(number) for number in LEAST_CAPABILITY)
    where = f"for CUDA devices of compute capability {least} or newer"
    slower = "" if WHY_BY_TRITON is None else f", launched by Triton itself, slower for the host: {WHY_BY_TRITON}"
    return f"Triton {version('triton')}: kernels {'interpreted on the CPU' if INTERPRETED else where + slower}"


def _selected_isa() -> str:
    try:
        isas = {dtype: torch.ops.crossret.selected_cpu_isa(dtype) for dtype in ("float32", "bfloat16", "float16")}
    except RuntimeError as error:
        return f"no call is served: {error}"
    if len(set(isas.values())) == 1:
        return f"running {isas['float32']}"
    return "running " + ", ".join(f"{isa} ({dtype})" for dtype, isa in isas.items())


def _operation_lines(device: torch.device) -> list[str]:
    """A table of what runs where no `backend=` is given: of every operation, by dtype."""
    rows = [[str(device), *(str(dtype).removeprefix("torch.") for dtype in _DTYPES)]]
    for names, has in OPERATIONS.items():
        backend_names = [_backend_of(device, dtype, has) for dtype in _DTYPES]
        rows += [[f"  {name}", *backend_names] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _backend_of(device: torch.device, dtype: torch.dtype, has: Collection[str]) -> str:
    """The backend that serves large calls without gradients."""
    first: tuple[str, ...] = ()
    if device.type == "cuda" and "cuda" in has:
        first = fastest.fastest_first(fastest.asked(DIRECTIONS[0], dtype, fastest.LARGE, False), device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing library, which has a line of its own
            return select_backend(None, device, dtype, None, has, first)
    except ValueError:
        return "none"


def _selected_backend(device: torch.device, dtype: torch.dtype) -> str:
    """The backend that runs without `backend=`, and whether CROSSRET_BACKEND prefers it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend_name = select_backend(None, device, dtype)
    except ValueError as error:
        return f"no call is served: {error}"
    preference = named_backend(None)
    if preference is None:
        return backend_name
    if preference == backend_name:
        return f"{backend_name}, which {ENVIRONMENT_VARIABLE} prefers"
    return f"{backend_name}, as {preference}, which {ENVIRONMENT_VARIABLE} prefers, cannot serve it"


if __name__ == "__main__":
    print(describe())
