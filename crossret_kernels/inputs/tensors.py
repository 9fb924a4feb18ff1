"""Arguments as tensors: NumPy arrays by the memory they share; dtypes, layouts and values checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, cuda
from torch.compiler import is_compiling

Array: TypeAlias = "Tensor | NDArray[Any]"

FEATURE_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INT64, DENSE = torch.int64, torch.strided  # looking them up in torch shows in the time of a call
INTEGER_DTYPES = (INT64, torch.int32, torch.int16, torch.int8, torch.uint8)
FEW = 128  # integers, which Python looks at faster than tensor operations do
_SHARED = frozenset(np.dtype(kind) for kind in ("f2", "f4", "f8", "?", "i1", "i2", "i4", "i8", "u1"))
_WIDENED = frozenset(np.dtype(kind) for kind in ("u2", "u4", "u8"))  # integers that few operations of torch know


def as_tensor(candidate: Any, name: str) -> Any:
    """The tensor that shares an array's memory; what is no array as it is, for the checks that follow.

    Raises TypeError or ValueError naming the argument for an array whose memory no tensor can share.
    """
    if not isinstance(candidate, np.ndarray):
        return candidate
    if torch.compiler.is_compiling():  # which traces arrays as tensors
        return torch.from_numpy(candidate)
    check_array(candidate, name)
    if candidate.dtype in _WIDENED:
        return torch.from_numpy(candidate.astype(np.int64))
    if candidate.flags.carray:
        return torch.from_numpy(candidate)
    if any(stride < 0 or stride % candidate.itemsize for stride in candidate.strides) or not candidate.flags.aligned:
        raise ValueError(f"{name} has strides {candidate.strides}, which a tensor cannot have: pass a copy")
    return torch.from_numpy(candidate if candidate.flags.writeable else np.asarray(_Writable(candidate)))


def check_array(array: NDArray[Any], name: str) -> None:
    """Raises TypeError for what a tensor cannot hold. What a mask hides would be read as if it were valid."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask, not a MaskedArray: fill or cut what it hides")
    if array.dtype in _SHARED or array.dtype in _WIDENED:
        return
    if array.dtype.newbyteorder("=") in _SHARED | _WIDENED:
        raise TypeError(f"{name} is {array.dtype.str}, not in this machine's byte order: pass {name}.astype of its own")
    raise TypeError(f"{name} must hold numbers that a tensor can, not {array.dtype}")


class _Writable:
    """A read-only array as one that torch takes without a warning: no operation here writes to its inputs."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # whose memory it is
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def autocasts(device_type: str) -> bool:
    """Whether autocast is at work there."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def checkable() -> bool:
    """Whether tensor values may be looked at: not while torch.compile traces or a CUDA graph is captured."""
    if is_compiling():
        return False
    return not (cuda.is_initialized() and cuda.is_current_stream_capturing())


def as_int64(integers: Tensor, name: str) -> Tensor:
    """Lengths, offsets or indices as int64, where they are; TypeError or ValueError where they are no such thing."""
    check_integers(integers, name)
    return integers if integers.dtype is INT64 else integers.to(torch.int64)


def check_dense(tensor: Tensor, name: str) -> None:
    """Raises TypeError where a tensor is sparse, nested or in a layout of its own."""
    if tensor.layout is not DENSE or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} must be a dense tensor, not a {kind} one")


def check_integers(integers: Tensor, name: str) -> None:
    """The check alone, which copies nothing."""
    check_dense(integers, name)
    if integers.dtype not in INTEGER_DTYPES:
        raise TypeError(f"{name} must be integers, not {integers.dtype}")
    if integers.is_meta:
        check_has_values(integers, name)


def check_floating(tensor: Tensor, name: str) -> None:
    """Raises TypeError where a tensor is not dense or of a dtype that is not scored; it may lack values."""
    check_dense(tensor, name)
    if tensor.dtype not in FEATURE_DTYPES:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, not {tensor.dtype}")


def check_has_values(tensor: Tensor, name: str) -> None:
    """Raises ValueError on the meta device; what traces a call, or fakes its tensors, gives them their own device."""
    if tensor.is_meta and checkable():
        raise ValueError(f"{name} is on the meta device, which holds no values")


def as_integers(integers: Array | Sequence[int], name: str) -> Tensor:
    """The same from a tensor, an array or a list."""
    if isinstance(integers, np.ndarray):
        integers = as_tensor(integers, name)
    if isinstance(integers, Tensor):
        return as_int64(integers, name)
    if not isinstance(integers, Sequence):
        raise TypeError(f"{name} must be an integer tensor or a list of integers, not {type(integers).__name__}")
    for index, integer in enumerate(integers):
        if isinstance(integer, bool) or not isinstance(integer, (int, np.integer)):
            raise TypeError(f"{name}[{index}] must be an integer, not {type(integer).__name__}")
        if not -(2**63) <= integer < 2**63:
            raise ValueError(f"{name}[{index}] is {integer}: it does not fit 64 bits")
    return torch.tensor([int(integer) for integer in integers], dtype=torch.int64)


def bounds(integers: Tensor) -> tuple[int, int]:
    """Smallest and largest of at least one integer."""
    if integers.numel() <= FEW:
        values = integers.tolist() if integers.dim() == 1 else integers.flatten().tolist()
        return min(values), max(values)
    lowest, highest = integers.aminmax()
    return int(lowest), int(highest)


def together_on_host(given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Integers and masks on the CPU: those of a device in one copy, which is waited for."""
    there = [x for x in given if x is not None and not x.is_cpu]
    joined = torch.cat([x.to(there[0].device).flatten().to(torch.int64) for x in there]).cpu()
    parts = iter(joined.split([x.numel() for x in there]))
    return [x if x is None or x.is_cpu else next(parts).view(x.shape).to(x.dtype) for x in given]
