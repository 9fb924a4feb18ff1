"""Medians of calls on a GPU, their inputs rotated so that no call finds its own in the cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

ROTATED_BYTES = 256 * 2**20  # bytes of inputs, several times the largest cache
MOST_COPIES = 512
WARM_SECONDS = 0.1  # a device that idled runs at a fraction of its clock
SECONDS = 0.25  # time a benchmark takes
FEWEST, MOST = 5, 600  # calls timed
HOST_SECONDS = 2e-4  # calls that take less may wait for the host: their graphs' replays are timed too
REPLAYED = 8  # sets of inputs that graphs are captured of, each with memory of its own


class Timer(Protocol):
    """Times calls made one after the other."""

    def __call__(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of each call."""
        ...


class Events:
    """Times by CUDA events around every call, read after the last: nothing waits for the device in between."""

    def __call__(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
        torch.cuda.synchronize()
        for call, (begin, end) in zip(calls, events, strict=True):
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def copies(input_bytes: int) -> int:
    """How many sets of inputs to rotate among."""
    return min(MOST_COPIES, max(2, -(-ROTATED_BYTES // max(input_bytes, 1))))


def median_seconds(calls: Sequence[Callable[[], object]], timer: Timer) -> tuple[float, int]:
    """(The median of one call, how many were timed) of calls alike but for their inputs, in rotation.

    Each is called once before: that compiles. More calls bring an idle device up to its clock.
    """
    warm = timer(calls)
    warm += timer([calls[index % len(calls)] for index in range(calls_in(WARM_SECONDS, warm))])
    count = max(FEWEST, calls_in(SECONDS, warm))
    return statistics.median(timer([calls[index % len(calls)] for index in range(count)])), count


def replay_of(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph, whose replay costs the host next to nothing."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # compiles and allocates
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def calls_in(seconds: float, times: Sequence[float]) -> int:
    """How many calls like those that took these times take so long."""
    return min(MOST, int(seconds / max(min(times), 1e-9)))
