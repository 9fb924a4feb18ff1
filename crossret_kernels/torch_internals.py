"""Private names of PyTorch, needed or faster: each with the public way, taken where the name is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _private(path: str) -> Any:
    """``torch.<path>``; None where this PyTorch has none."""
    value: Any = torch
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


_call_boxed = _private("_C._dispatch_call_boxed")
_has_torch_function = _private("_C._has_torch_function") or torch.overrides.has_torch_function
_modes = [_private("_C._len_torch_dispatch_stack"), _private("_C._len_torch_function_stack")]
_functorch_is_active = _private("_C._are_functorch_transforms_active")
_mkldnn_precision = _private("_C._get_fp32_precision_getter")
_excluded = _private("_C._ExcludeDispatchKeyGuard")
_keys, _key = _private("_C.DispatchKeySet"), _private("_C.DispatchKey")


def called_directly(operation: Any, features: Callable[[tuple[Any, ...]], Any] = tuple) -> Callable[..., Any]:
    """An overload of an operation without the look for overrides of every argument, which costs as much as a small
    score: of those alone that `features` picks. Subclasses and modes that have none are the dispatcher's all the same.
    """
    if _call_boxed is None or not hasattr(operation, "_handle"):
        return operation
    call = partial(_call_boxed, operation._handle)
    return lambda *arguments: (operation if _has_torch_function(features(arguments)) else call)(*arguments)


def nothing_dispatches(tensors: Sequence[Tensor]) -> bool:
    """Whether these are plain tensors on the CPU or a CUDA device, and no mode or autocast is at work; without the
    private names, never.
    """
    for count in _modes:
        if count is None or count():
            return False
    for tensor in tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
    device_type = "cuda" if tensors[0].is_cuda else "cpu"
    return (device_type == "cuda" or tensors[0].is_cpu) and not torch.is_autocast_enabled(device_type)


IN_TORCH = "torch.func's transforms and forward-mode differentiation go through 'torch'"  # without kernels


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation may be at work: always, where PyTorch does not tell."""
    if _functorch_is_active is None:
        return True
    return bool(getattr(forward_ad, "_current_level", 0) >= 0 or _functorch_is_active())


def recomputes() -> bool:
    """Whether what autograd keeps can be hooked: torch.func's transforms take none."""
    return _functorch_is_active is not None and not _functorch_is_active()


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Within it, operations are called as they are: whatever is to be cast has been."""
    if _excluded is None or _keys is None:
        return torch.autocast(device_type, enabled=False)
    return _excluded(_keys(getattr(_key, "AutocastCUDA" if device_type == "cuda" else "AutocastCPU")))


def reduced_float32(on_gpu: bool) -> bool:
    """Whether the user allows products of float32 features in less than its precision, as torch's are then."""
    if on_gpu:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
    # The public name of the same, which older versions of PyTorch lack, takes longer than a small score.
    if _mkldnn_precision is None:
        return torch.get_float32_matmul_precision() != "highest"
    return _mkldnn_precision("mkldnn", "matmul") in ("tf32", "bf16")


# A constant of what torch.compile makes, which makes it anew when the precision has changed: as
# torch.compiler.assume_constant_result would mark it, which imports the compiler, seconds of every process.
reduced_float32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def environment(name: str) -> str | None:
    """An environment variable, None where it is empty or not set.

    The latter os.environ tells by an exception, which costs as much as a small score, and what it keeps without one.
    """
    variables = getattr(os.environ, "_data", None)
    if variables is not None and os.environ.encodekey(name) not in variables:
        return None
    return os.environ.get(name) or None
