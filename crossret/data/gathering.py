"""Rows of an array in memory of their own: by a few threads, and into pinned memory where they go to a GPU.

Memory that is fresh costs more than what is read into it, as the system clears it page by page. PyTorch keeps pinned
memory, and gives it out again when the copies to a GPU that read it are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.system import cores

MOST_THREADS = 4
LEAST_BYTES = 2**22  # bytes that a further thread is worth
_pinning = ContextVar("pinning", default=False)


@contextmanager
def pinned(pin: bool = True) -> Iterator[None]:
    """Rows that are gathered in it lie in pinned memory."""
    token = _pinning.set(pin)
    try:
        yield
    finally:
        _pinning.reset(token)


def pinning() -> bool:
    """Whether they do."""
    return _pinning.get()


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """Memory that rows are gathered into."""
    return torch.empty(shape, dtype=dtype_of(dtype), pin_memory=pinning())


def dtype_of(dtype: np.dtype[Any]) -> torch.dtype:
    """PyTorch's dtype for NumPy's."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def gathered(array: NDArray[Any], rows: NDArray[np.int64], lengths: NDArray[np.int64] | None = None) -> Tensor:
    """``array[rows]``, zero behind each row's length, which is not read.

    Args:
        array: (n, …), of numbers; it may be a memory map.
        rows: (b,), each of 0..n - 1.
        lengths: (b,), how much of each row there is; None: all.
    """
    out = empty((len(rows), *array.shape[1:]), array.dtype)
    into = out.numpy()

    def gather(part: slice) -> None:
        if lengths is None:
            np.take(array, rows[part], axis=0, out=into[part], mode="clip")  # another mode would take them twice
            return
        for own, row, length in zip(into[part], rows[part].tolist(), lengths[part].tolist(), strict=True):
            own[:length] = array[row, :length]
            own[length:] = 0

    threads = min(MOST_THREADS, cores(), into.nbytes // LEAST_BYTES)
    if threads < 2:
        gather(slice(None))
        return out
    bounds = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads, thread_name_prefix="crossret-rows") as pool:
        list(pool.map(gather, map(slice, bounds, bounds[1:])))
    return out
