"""Successive items in groups: against a walk over the items, one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.gpu.planning import cut


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.none() | st.integers(1, 5),
)
def test_groups_are_as_long_as_limits_allow(
    items: list[tuple[int, int]], most: tuple[int, int], most_items: int | None
) -> None:
    starts = [np.concatenate([[0], np.cumsum([item[kind] for item in items])]).astype(np.int64) for kind in (0, 1)]
    bounds = cut(*zip(starts, most, strict=True), most_items=most_items)

    def fits(first: int, last: int) -> bool:
        amounts = (of[last] - of[first] <= limit for of, limit in zip(starts, most, strict=True))
        return last - first <= (most_items or len(items)) and all(amounts)

    assert (bounds[0], bounds[-1]) == (0, len(items))
    for first, last in pairwise(bounds):
        assert last == first + 1 or fits(first, last)
        assert last == len(items) or not fits(first, last + 1)
