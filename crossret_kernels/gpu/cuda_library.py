"""What the CUDA library tells of its kernels: constants that calls are cut up by, names of the numbers they take."""

from __future__ import annotations

from array import array
from functools import cache

import torch
from torch import Tensor


def constant(name: str) -> int:
    """One of the kernels' sizes."""
    return constants(name)[0]


@cache
def constants(name: str) -> tuple[int, ...]:
    """The same, of every kind of tile or arithmetic that the library lists."""
    return tuple(int(value) for value in _told()[name])


def numbers(launch: str, **values: int) -> Tensor:
    """The numbers that a launch takes, by their names, as it takes them: int64 on the CPU.

    Raises ValueError where one is missing or unknown.
    """
    names = _told()[launch]
    try:
        given = array("q", map(values.__getitem__, names))
    except KeyError:
        given = array("q")
    if not len(given) == len(names) == len(values):
        raise ValueError(f"{launch} takes {', '.join(names)}, not {', '.join(values)}")
    return torch.frombuffer(given, dtype=torch.int64)  # in a tenth of the time of a list


@cache
def _told() -> dict[str, list[str]]:
    return {name: words for name, *words in map(str.split, torch.ops.crossret.cuda_told().splitlines())}
