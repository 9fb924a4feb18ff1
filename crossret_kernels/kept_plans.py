"""Plans of a side's lengths on the device, kept from call to call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from crossret_kernels.ragged import Ragged

KEPT_PLANS = 64
KEPT_BYTES = 64 * 2**20  # of them together, on the device; the latest stays whatever it takes

Plan = TypeVar("Plan")


class _Kept:
    """Plans by what they were made of, the latest used; those that a CUDA graph was captured with are kept for good."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[object, ...], object] = OrderedDict()
        self._captured: dict[tuple[object, ...], object] = {}
        self._bytes = 0  # of the latest

    def get(self, key: tuple[object, ...]) -> object | None:
        found = self._captured.get(key) or self._latest.get(key)
        if found is not None:
            self.put(key, found)
        return found

    def put(self, key: tuple[object, ...], made: object) -> None:
        self._bytes += _bytes_of(made) - _bytes_of(self._latest.pop(key, None))
        self._latest[key] = made
        while len(self._latest) > 1 and (len(self._latest) > KEPT_PLANS or self._bytes > KEPT_BYTES):
            _, dropped = self._latest.popitem(last=False)
            self._bytes -= _bytes_of(dropped)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._captured[key] = made


def _bytes_of(made: object) -> int:
    return sum(value.nbytes for value in getattr(made, "__dict__", {}).values() if isinstance(value, Tensor))


_kept = _Kept()


def kept_plan(kind: type[Plan], options: tuple[object, ...], side: Ragged, make: Callable[[], Plan]) -> Plan:
    """What `make` makes of a side's lengths with these options, made at the first call with them."""
    key = (kind, *options, *_key(side))
    found = _kept.get(key)
    if not isinstance(found, kind):
        found = make()
        _kept.put(key, found)
    return found


def _key(side: Ragged) -> tuple[object, ...]:
    integers = side.offsets if side.offsets is not None else side.padded_lengths
    return (
        side.values.device,
        len(side),
        side.offsets is None,
        side.values.size(1 if side.offsets is None else 0),  # rows that there are
        None if integers is None else integers.cpu().numpy().tobytes(),
    )
