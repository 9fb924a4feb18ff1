"""Which kernels of stacked cross attention are faster on a GPU, by its record: what `backend=None` takes first.

`fastest.json` holds what was measured, a case a line, of the latest record of every card; `make gpu` measures, and
`python -m benchmarks.gpu.fastest` makes the file of benchmarks/results. A case that no record has is judged by those
most like it, and a card without a record by the cards nearest in compute capability.
"""

from __future__ import annotations

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from crossret_kernels.torch_internals import reduced_float32

TABLE = Path(__file__).with_suffix(".json")
KERNELS = ("triton", "cuda")
LARGE = 2**36  # flop of the product of similarities from which on a call is large


class Asked(NamedTuple):
    """Facts of a call that the fastest backend depends on.

    Attributes:
        direction: of the scores.
        precision: of the products: the features' dtype, "tf32" for float32 features where TF32 is allowed.
        gradients: whether they are to follow.
        large: whether the work is from `LARGE` on.
    """

    direction: str
    precision: str
    gradients: bool
    large: bool


class Case(NamedTuple):
    """One that was measured; `times` is how many times as fast as "triton" "cuda" was."""

    card: str
    capability: tuple[int, int]
    date: str
    asked: Asked
    times: float


def asked(direction: str, dtype: torch.dtype, work: int, gradients: bool) -> Asked:
    """Key of a call that multiplies these features, by so many flop."""
    precision = str(dtype).removeprefix("torch.")
    if precision == "float32" and reduced_float32(on_gpu=True):
        precision = "tf32"
    large = is_compiling() or work >= LARGE  # a graph of one size would be made for others, too
    return Asked(direction, precision, gradients, large)


def fastest_first(call: Asked, device: torch.device) -> tuple[str, ...]:
    """`KERNELS` as a call on a CUDA device should try them."""
    return order(call, *torch.cuda.get_device_capability(device))


@cache
def order(call: Asked, major: int, minor: int) -> tuple[str, ...]:
    """`KERNELS` for a compute capability, fastest first."""
    nearest = min(_distance(case.capability, (major, minor)) for case in cases())
    found = [case for case in cases() if _distance(case.capability, (major, minor)) == nearest]
    most = max(_likeness(case.asked, call) for case in found)
    alike = [case.times for case in found if _likeness(case.asked, call) == most]
    return KERNELS[::-1] if prod(alike) > 1 else KERNELS


order._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as of `reduced_float32`


@cache
def cases() -> tuple[Case, ...]:
    """All of the file."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Case(card, tuple(map(int, capability.split("."))), date, Asked(*call), times)  # type: ignore[arg-type]
        for card, capability, date, *call, times in rows
    )


def lines() -> list[str]:
    """Lines of the file for people, one for each card and precision."""
    found: dict[tuple[str, str], list[float]] = {}
    for case in cases():
        found.setdefault((f"{case.card}, {case.date}", case.asked.precision), []).append(case.times)
    return [f"{card}: {precision}: {_told(times)}" for (card, precision), times in found.items()]


def _told(times: list[float]) -> str:
    """The faster backend of some cases, and how many times."""
    by_backend = {"cuda": [x for x in times if x > 1], "triton": [1 / x for x in times if x <= 1]}
    return ", ".join(f"{name} {_range(own)} times as fast" for name, own in by_backend.items() if own)


def _range(values: list[float]) -> str:
    least, most = (f"{x:.2f}" for x in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _distance(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Between compute capabilities, whose major number tells generations apart."""
    return abs(first[0] - second[0])


def _likeness(case: Asked, call: Asked) -> tuple[bool, ...]:
    """Facts that two calls have in common, those that matter most first."""
    return (
        case.precision == call.precision,
        case.large == call.large,
        case.gradients == call.gradients,
        case.direction == call.direction,
    )
