"""What the CUDA library tells of its kernels: constants that calls are cut up by, names of the numbers they take."""

from __future__ import annotations

from array import array
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor


def constant(name: str) -> int:
    """One of the kernels' sizes."""
    return constants(name)[0]


@cache
def constants(name: str) -> tuple[int, ...]:
    """The same, of every kind of tile or arithmetic that the library lists."""
    return tuple(int(value) for value in _told()[name])


@lru_cache(1024)  # a tensor of some numbers takes the host as long as a launch
def numbers(launch: str, real: bool = False, /, **values: float) -> Tensor:
    """The numbers that a launch takes, by their names, as it takes them: int64 or float64 on the CPU.

    Raises ValueError where one is missing or unknown.
    """
    names = _told()[launch]
    try:
        given: Any = array("d" if real else "q", map(values.__getitem__, names))
    except KeyError:
        given = ()
    if not len(given) == len(names) == len(values):
        raise ValueError(f"{launch} takes {', '.join(names)}, not {', '.join(values)}")
    return torch.frombuffer(given, dtype=torch.float64 if real else torch.int64)  # in a tenth of the time of a list


@cache
def _told() -> dict[str, list[str]]:
    lines = torch.ops.crossret.attention_told().splitlines()
    return {name: words for name, *words in map(str.split, lines)}
