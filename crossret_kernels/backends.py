"""Backends by name: which can serve a call, and why one cannot; loads the native libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import torch
from torch.compiler import is_compiling

# Defines the operations that the library implements.
from crossret_kernels import operations  # noqa: F401
from crossret_kernels.inputs.call import check_traceable
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import autocasts
from crossret_kernels.torch_internals import environment, reduced_float32

PACKAGE = Path(__file__).parent
BACKENDS = ("cpu", "triton", "cuda", "torch", "reference")
# Backends by device type; backend=None takes the first that can serve the call, and "torch" can serve all. `fastest`
# decides between "triton" and "cuda" where both have kernels, which is stacked cross attention.
FASTEST_FIRST = {"cpu": ("cpu", "torch"), "cuda": ("triton", "cuda", "torch")}
ENVIRONMENT_VARIABLE = "CROSSRET_BACKEND"
ISA_VARIABLE = "CROSSRET_CPU_ISA"  # read once, when the library loads
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST_CAPABILITY = (8, 0)
# Why "cuda" leaves float32 features to others.
NOT_IN_TF32 = (
    "it multiplies float32 features in TF32 alone, which is not allowed: 'triton' serves them, or set "
    "torch.backends.cuda.matmul.allow_tf32 = True"
)
_CPU = torch.device("cpu")

# Triton reads it once, when it is imported: kernels then run on the CPU, slowly, for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


class UnsupportedByBackend(RuntimeError):
    """A backend demanded by `backend=` cannot serve the call; the message says why."""


def _load(name: str, called: str) -> str | None:
    """Loads a library of compiled kernels; returns why it is absent, None when it is there."""
    paths = sorted(PACKAGE.glob(f"{name}.*so"))
    if not paths:
        reason = PACKAGE / f"{name}_missing.txt"  # setup.py wrote it, if the build went without the library
        why = reason.read_text(encoding="utf-8").strip() if reason.is_file() else f"no {name}.*so in the package"
        return f"the {called} library was not built ({why})"
    try:
        torch.ops.load_library(str(paths[0]))
    except OSError as error:
        return f"the {called} library does not load: {error}"
    return None


def _load_native() -> str | None:
    missing = _load("_native", "native")
    if missing is None:
        # Given to the library, which does not read it: getenv races with other threads that set variables.
        isa = os.environ.get(ISA_VARIABLE, "").encode("ascii", "backslashreplace").decode("ascii")
        torch.ops.crossret.select_cpu_isa(isa)
    return missing


NATIVE_MISSING = _load_native()
CUDA_MISSING = _load("_native_cuda", "CUDA")
TRITON_MISSING = None if importlib.util.find_spec("triton") else "Triton is not installed (pip install triton)"
CUDA_ARCHITECTURES: str = "" if CUDA_MISSING else torch.ops.crossret.cuda_architectures()
# The CUDA kernels run on the CPU, slowly: tests set it, with a library of their own.
SIMULATED = False


def unsupported_reason(backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why `backend` cannot score features of this device and dtype; None when it can."""
    if backend in ("torch", "reference"):
        return None
    if backend == "triton" and TRITON_MISSING is not None:
        return TRITON_MISSING
    if backend == "cuda" and CUDA_MISSING is not None:
        return CUDA_MISSING
    on_cpu = backend == "cpu" or (INTERPRETED if backend == "triton" else SIMULATED)
    kind = "cpu" if on_cpu else "cuda"
    if _type_of(device) != kind:
        where = {"cpu": "the CPU", "cuda": "CUDA devices"}[kind]
        return f"it runs on {where} but the features are on {device}"
    if dtype not in KERNEL_DTYPES:
        return f"it takes float32, bfloat16 and float16 features, not {dtype}"
    if backend == "cpu":
        return NATIVE_MISSING
    if on_cpu:
        if (backend, dtype) == ("triton", torch.bfloat16):
            return "Triton's interpreter gets bfloat16 wrong"
        return _refused_products(backend, device, dtype)
    if torch.version.hip is not None:  # whose devices are called "cuda", too
        return f"it is written for NVIDIA's GPUs, this PyTorch is built for ROCm {torch.version.hip}"
    if not torch.cuda.is_available():
        return "this PyTorch finds no CUDA device"
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        return f"it takes compute capability 8.0 or newer, {device} has {found}"
    if backend == "cuda" and not runs_on(CUDA_ARCHITECTURES, found):
        return f"it is built for compute capability {CUDA_ARCHITECTURES}, {device} has {found}"
    return _refused_products(backend, device, dtype)


def _refused_products(backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Products that "cuda" would make in TF32 alone, where it is not allowed."""
    if backend != "cuda" or dtype is not torch.float32 or reduced_float32(True) or autocasts(_type_of(device)):
        return None
    return NOT_IN_TF32


@cache
def runs_on(architectures: str, capability: tuple[int, int]) -> bool:
    """Whether kernels built for ``architectures``, as TORCH_CUDA_ARCH_LIST names them, run on a device.

    Machine code for 8.6 runs on every 8.x from there on; the driver makes such code of what "+PTX" adds, for anything
    newer. With an "a" a number means that capability alone, with an "f" no other major one.
    """
    for name in architectures.split():
        number, _, ptx = name.partition("+")
        major, minor = (int(part) for part in number.rstrip("af").split("."))
        if number.endswith("a"):
            runs = (major, minor) == capability
        else:
            runs = major == capability[0] and minor <= capability[1]
            runs = runs or (bool(ptx) and not number.endswith("f") and (major, minor) <= capability)
        if runs:
            return True
    return False


def select_in_torch(requested: str | None, made: str, takes_padded: str, *sides: Ragged) -> str:
    """`select_backend` of a call that has no kernels, and `check_traceable`; `made` says what is made."""
    check_traceable(takes_padded, *sides)
    values = sides[0].values
    reason = f"{made} in PyTorch operations, by 'torch' and 'reference'"
    return select_backend(requested, values.device, values.dtype, reason)


def select_backend(
    requested: str | None, device: torch.device, dtype: torch.dtype, no_kernels: str | None = None,
    served_by: Collection[str] = BACKENDS, first: Sequence[str] = (),
) -> str:  # fmt: skip
    """The backend that serves a call: named by the argument, else preferred by CROSSRET_BACKEND, else the fastest.

    The argument is a demand. A preference is taken for every call that it can serve, and is as if not set for others.

    `no_kernels` tells why those of no backend serve this very call, whatever else they serve; None where they may.
    `served_by` names the backends whose kernels make the operation at all, `first` the fastest of this very call.
    Warns, once a process, where only the missing native library makes the fastest a slow one; not in what
    torch.compile traces, whose graph a warning would break.

    Raises ValueError for an unknown name and `UnsupportedByBackend` when the demanded backend cannot serve the call.
    """
    name = named_backend(requested)
    if name is not None:
        if name not in BACKENDS:
            source = "backend" if requested is not None else ENVIRONMENT_VARIABLE
            raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}, not {name!r}")
        reason = _refusal(name, device, dtype, no_kernels, served_by)
        if reason is None:
            return name
        if requested is not None:
            raise UnsupportedByBackend(f"backend {name!r} cannot serve this call: {reason}")
    missed = NATIVE_MISSING is not None and _refusal("cpu", device, dtype, no_kernels, served_by) == NATIVE_MISSING
    if missed and not is_compiling():
        _warn_of_slow_scores()
    for backend in (*first, *FASTEST_FIRST.get(_type_of(device), ())):
        if _refusal(backend, device, dtype, no_kernels, served_by) is None:
            return backend
    return "torch"


def serving(device: torch.device, dtype: torch.dtype) -> str:
    """Names of the backends that serve calls of such features by kernels: on a GPU either of two, by the call."""
    chosen = select_backend(None, device, dtype)
    kernels = [name for name in FASTEST_FIRST["cuda"] if name != "torch"]
    if chosen not in kernels or named_backend(None) == chosen:
        return chosen
    return " or ".join(name for name in kernels if unsupported_reason(name, device, dtype) is None)


def named_backend(requested: str | None) -> str | None:
    """The backend that the argument demands, or else CROSSRET_BACKEND prefers; None without either."""
    return requested if requested is not None else environment(ENVIRONMENT_VARIABLE)


def _type_of(device: torch.device) -> str:
    """device.type, which torch prints into a stream whenever it is asked."""
    return "cpu" if device == _CPU else device.type


def _refusal(
    backend: str, device: torch.device, dtype: torch.dtype, no_kernels: str | None, served_by: Collection[str]
) -> str | None:
    reason = unsupported_reason(backend, device, dtype)
    if backend in ("torch", "reference") or reason not in (None, NATIVE_MISSING, CUDA_MISSING, NOT_IN_TF32):
        return reason
    if no_kernels is None and backend not in served_by:
        others = f"those of {' and '.join(map(repr, served_by))} do, and 'torch'" if served_by else "'torch' does"
        no_kernels = f"its kernels do not make this; {others}"
    return no_kernels or reason  # what has no kernel misses neither the library nor TF32


def _frames_of_ours() -> int:
    """Frames between the caller of this function and the caller of this package, as `warnings.warn` counts."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, count = frame.f_back, count + 1
    return count


@cache
def _warn_of_slow_scores() -> None:
    warnings.warn(
        f"scores run several times slower, in PyTorch operations: the native kernels are missing from {PACKAGE}: "
        f"{NATIVE_MISSING}. In a checkout `make setup` builds them; an installed package is found where Python is not "
        "started in the checkout's root. `python -m crossret_kernels.info` tells what runs",
        RuntimeWarning,
        stacklevel=_frames_of_ours(),
    )
