"""Fewer cases than every combination of what a test varies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def every_two(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one of each of `choices`, among which any two that are not of the same meet at least once."""
    assert len(choices) > 1 and all(choices), "no two of them"
    ranges = [range(len(each)) for each in choices]
    left = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(choices)), 2)
        for a in ranges[i]
        for b in ranges[j]
    }
    found = []
    while left:
        rows = (tuple(enumerate(row)) for row in itertools.product(*ranges))
        best = max(rows, key=lambda row: sum(pair in left for pair in itertools.combinations(row, 2)))
        left -= {*itertools.combinations(best, 2)}
        found.append(tuple(choices[i][a] for i, a in best))
    return found
