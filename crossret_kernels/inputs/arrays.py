"""NumPy arrays as tensors of the same memory, wherever an argument is a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
