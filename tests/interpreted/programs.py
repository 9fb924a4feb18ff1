"""The programs of a launch as Triton's interpreter runs them, one after another: in which order, and what they touch.

A device runs them in any order, and many at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
from triton.runtime import interpreter

ORDERS = ("forward", "reversed", "shuffled")
BUILDER = interpreter.interpreter_builder


@lru_cache(1000)
def permutation(order: str, count: int) -> list[int]:
    """The numbers of programs, in one of `ORDERS`."""
    numbers = list(range(count))
    if order == "shuffled":
        Random(count).shuffle(numbers)
    return numbers[::-1] if order == "reversed" else numbers


@contextmanager
def programs_run(order: str | None = None, seed: str = "") -> Iterator[None]:
    """Runs programs in this order; without one in one that is drawn for every size of a grid, always the same."""
    set_place = type(BUILDER).set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> None:
        n_x, n_y, n_z = BUILDER.grid_dim
        drawn = order or ORDERS[crc32(f"{seed} {n_x} {n_y} {n_z}".encode()) % len(ORDERS)]
        number = permutation(drawn, n_x * n_y * n_z)[(x * n_y + y) * n_z + z]
        set_place(BUILDER, number // (n_y * n_z), number // n_z % n_y, number % n_z)

    with patch.object(BUILDER, "set_grid_idx", set_grid_idx):
        yield


PROGRAMS = 2**16  # of a launch, at most, so that an address and a program are one number


def touched(cells: list[tuple[int, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(Addresses, programs that touched them), in order and each pair once."""
    every = [addresses.astype(np.int64) * PROGRAMS + program for program, addresses in cells]
    return np.divmod(np.unique(np.concatenate([np.empty(0, np.int64), *every])), PROGRAMS)


def shared(reads: list[tuple[int, np.ndarray]], writes: list[tuple[int, np.ndarray]]) -> int:
    """How many addresses a program has written that another one has read or written."""
    (read, readers), (wrote, writers) = touched(reads), touched(writes)
    again = int((wrote[1:] == wrote[:-1]).sum())
    last = np.searchsorted(wrote, read, "right") - 1
    foreign = (last >= 0) & (wrote[last] == read) & (writers[last] != readers) if len(wrote) else last < last
    return again + int(foreign.sum())


@contextmanager
def programs_share_nothing() -> Iterator[None]:
    """Fails of a launch of which one program writes what another one reads or writes."""
    launch, builder = interpreter.GridExecutor.__call__, type(BUILDER)
    reads: list[tuple[int, np.ndarray]] = []
    writes: list[tuple[int, np.ndarray]] = []

    def touch(into: list[tuple[int, np.ndarray]], cells: Any, mask: Any) -> None:
        (x, y, z), (_, n_y, n_z) = BUILDER.grid_idx, BUILDER.grid_dim
        into.append(((x * n_y + y) * n_z + z, cells.data[mask.data].ravel()))

    def watched(self: Any, *arguments: Any, **named: Any) -> None:
        reads.clear()
        writes.clear()
        launch(self, *arguments, **named)
        found = shared(reads, writes)
        assert not found, f"{found} cells that a program of {self.fn.__name__} writes are another's too"

    def load(cells: Any, mask: Any, *others: Any) -> Any:
        touch(reads, cells, mask)
        return builder.create_masked_load(BUILDER, cells, mask, *others)

    def store(cells: Any, value: Any, mask: Any, *others: Any) -> Any:
        touch(writes, cells, mask)
        return builder.create_masked_store(BUILDER, cells, value, mask, *others)

    with (
        patch.object(interpreter.GridExecutor, "__call__", watched),
        patch.object(BUILDER, "create_masked_load", load),
        patch.object(BUILDER, "create_masked_store", store),
    ):
        yield
