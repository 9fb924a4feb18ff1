"""Plans of a side's lengths on the device, kept from call to call, for all streams and threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

KEPT_PLANS = 64
KEPT_BYTES = 64 * 2**20  # of them together, on the device; the latest stays whatever it takes

_CPU = torch.device("cpu")  # comparing takes a tenth of what a device's type does, which torch prints

ALIGNED = 32  # int32: tables that begin at other addresses would have kernels compiled for them


class Tables(Protocol):
    """A plan: `tables` are all that the device has of it, as `on_device` brings them."""

    @property
    def tables(self) -> Sequence[Tensor]: ...


Plan = TypeVar("Plan", bound=Tables)


@dataclass(frozen=True)
class _Entry:
    """A plan and its bytes on the device.

    Attributes:
        ready: when its tables are there; None on a CPU.
        streams: those that have waited for it, and that its memory waits for.
    """

    plan: Tables
    nbytes: int
    ready: torch.cuda.Event | None
    streams: set[torch.cuda.Stream]


class _Kept:
    """Plans by what they were made of, the latest used; those that a CUDA graph was captured with are kept for good.

    Threads and streams share them. A stream waits until the tables that another's call brought are there; once a plan
    is dropped, no other tensor gets their memory before all streams that read them have done what they had queued by
    then. A capture waits for nothing: what begins one, as torch.cuda.graph does, has waited for the device.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest: OrderedDict[tuple[object, ...], _Entry] = OrderedDict()
        self._last: _Entry | None = None  # of those the latest used
        self._captured: dict[tuple[object, ...], Tables] = {}
        self._bytes = 0  # of the latest

    def get(self, key: tuple[object, ...], stream: torch.cuda.Stream | None) -> Tables | None:
        """The plan for kernels on this stream, if there is one."""
        with self._lock:
            entry = self._latest.get(key)
            if entry is None:
                return self._captured.get(key)
            if entry is not self._last:  # a key's hash takes as long as all else here
                self._latest.move_to_end(key)
                self._last = entry
            if stream is None:
                return entry.plan
            if torch.cuda.is_current_stream_capturing():
                self._captured[key] = self._pop(key).plan
            elif stream not in entry.streams:
                entry.streams.add(stream)
                _wait(stream, entry.ready)
                for table in entry.plan.tables:
                    table.record_stream(stream)
            return entry.plan

    def put(self, key: tuple[object, ...], plan: Tables, stream: torch.cuda.Stream | None) -> None:
        """Keeps a plan that was made on this stream, in place of what another thread may have made meanwhile."""
        nbytes = sum(table.nbytes for table in plan.tables)
        entry = _Entry(plan, nbytes, *((None, set()) if stream is None else (_mark(stream), {stream})))
        with self._lock:
            if key in self._latest:
                self._pop(key)
            self._latest[key] = self._last = entry
            self._bytes += entry.nbytes
            while len(self._latest) > 1 and (len(self._latest) > KEPT_PLANS or self._bytes > KEPT_BYTES):
                self._pop(next(iter(self._latest)))

    def _pop(self, key: tuple[object, ...]) -> _Entry:
        entry = self._latest.pop(key)
        self._bytes -= entry.nbytes
        return entry


_kept = _Kept()


def kept_plan(kind: type[Plan], key: tuple[object, ...], device: torch.device, make: Callable[[], Plan]) -> Plan:
    """The plan of this kind and key, which `make` makes at the first call with them.

    It brings tables to the device by `on_device`, on the stream of the call.

    Raises:
        RuntimeError: a CUDA graph is being captured, and there is no such plan yet.
    """
    key = (kind, *key)
    stream = _stream(device)
    found = _kept.get(key, stream)
    if not isinstance(found, kind):
        if stream is not None and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "these lengths have no plan yet, and none can be made while a CUDA graph is captured: score features "
                "of the same lengths once before the capture"
            )
        found = make()
        _kept.put(key, found, stream)
    return found


def on_device(device: torch.device, *tables: NDArray[Any]) -> tuple[Tensor, ...]:
    """The tables as int32, in one copy, which the host does not wait for: every batch of a training has new lengths."""
    sizes = [size for table in tables for size in (table.size, -table.size % ALIGNED)]
    joined = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device != _CPU)
    numbers, start = joined.numpy(), 0
    for table in tables:
        numbers[start : start + table.size] = table.ravel()
        start += table.size + -table.size % ALIGNED
    parts = torch.split_with_sizes(joined.to(device, non_blocking=True), sizes)[::2]
    return tuple([x if table.ndim == 1 else x.view(table.shape) for x, table in zip(parts, tables, strict=True)])


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    """What kernels are launched on."""
    return None if device == _CPU else torch.cuda.current_stream(device)


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    return stream.record_event()


def _wait(stream: torch.cuda.Stream, ready: torch.cuda.Event | None) -> None:
    if ready is not None:
        stream.wait_event(ready)
