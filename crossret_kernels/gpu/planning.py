"""How successive items of a side are cut up: into tiles, jobs, runs and parts of a bounded workspace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def cut(*limits: tuple[NDArray[np.int64] | Sequence[int], int], most_items: int | None = None) -> list[int]:
    """Bounds of groups of successive whole items: of as much and as many as the limits allow, one at least.

    Args:
        limits: pairs of where every item begins in something, and where the last ends, (items + 1,); and the most of it
            that a group has.
        most_items: of a group.
    """
    count = len(limits[0][0]) - 1
    items = np.arange(count)
    ends = np.full(count, count)
    for starts, most in limits:
        of = np.asarray(starts)
        ends = np.minimum(ends, np.searchsorted(of, of[:-1] + most, "right") - 1)
    ends = np.maximum(ends, items + 1)
    if most_items is not None:
        ends = np.minimum(ends, items + most_items)
    bounds, nexts = [0], ends.tolist()
    while bounds[-1] < count:
        bounds.append(nexts[bounds[-1]])
    return bounds
