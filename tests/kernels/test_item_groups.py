"""Items walked over side by side: every row of every item passes once, in its item's columns alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.maxsim.item_groups import GROUP_COST, PROCESSORS, best_abreast, by_length, groups_of
from tests.kernels.test_row_blocks import lengths, sides


@given(
    sizes=lengths,
    columns=st.sampled_from([16, 64]),
    depth=st.sampled_from([1, 4]),
    window=st.integers(1, 14),
    n_tiles=st.sampled_from([1, 10_000]),
)
def test_groups_hold_every_item_of_their_window(
    sizes: list[int], columns: int, depth: int, window: int, n_tiles: int
) -> None:
    all_first_rows = np.cumsum([0, *sizes]), np.arange(len(sizes)) * (max(sizes) + 2)
    for side, first_rows in zip(sides(sizes), all_first_rows, strict=True):
        plan = groups_of(side, columns, depth, window, n_tiles)
        abreast = 1 << plan.bits
        assert abreast <= columns
        assert plan.slots.shape == (-(-len(sizes) // window), plan.groups, abreast, 3)
        for number, groups in enumerate(plan.slots.tolist()):
            held = [item for group in groups for _, _, item in group if item >= 0]
            assert sorted(held) == list(range(number * window, min((number + 1) * window, len(sizes))))
            assert len(held) > (len([group for group in groups if group[0][2] >= 0]) - 1) * abreast  # no gap before it
            longest = [sizes[item] for item in held]
            assert longest == sorted(longest, reverse=True)
            for group in groups:
                for row, size, item in group:
                    assert size <= group[0][1]  # a group takes as many steps as its first
                    assert item < 0 or (row, size) == (first_rows[item], sizes[item])
                    assert row + size <= first_rows[-1] + sizes[-1]


def test_a_group_takes_as_many_items_as_suits_them() -> None:
    def abreast(length: int, count: int, n_tiles: int, depth: int = 4) -> int:
        return best_abreast(np.full((1, count), length), 64, depth, n_tiles)

    assert abreast(36, 1000, 500) == 64  # no column has a row too few
    assert abreast(36, 16, 1) < 8  # few items are shared out among many programs
    assert abreast(300, 1000, 1, depth=1) == 1
    assert abreast(10_000, 3, 1) == 1
    assert abreast(12, 1, 1000) == 1


@given(sizes=lengths, n_tiles=st.integers(1, 5000))
def test_no_other_number_of_items_costs_less(sizes: list[int], n_tiles: int) -> None:
    ordered = np.sort(np.array([sizes]))[:, ::-1]

    def cost(abreast: int) -> float:
        steps = [
            -(-group[0] // (64 // abreast)) for group in np.array_split(ordered[0], range(abreast, len(sizes), abreast))
        ]
        return sum(step + GROUP_COST for step in steps) * n_tiles / PROCESSORS + max(steps)

    chosen = best_abreast(ordered, 64, 1, n_tiles)
    assert all(cost(chosen) <= cost(1 << bit) + 1e-9 for bit in range(7))


def test_windows_are_ordered_each_for_itself() -> None:
    assert by_length(np.array([3, 9, 9, 4, 7, 1, 2]), 3).tolist() == [[1, 2, 0], [4, 3, 5], [6, -1, -1]]


def test_plans_are_made_once_for_an_order_of_magnitude() -> None:
    first, second = (sides([3, 70, 18])[0] for _ in range(2))
    assert groups_of(first, 64, 1, 3, 33) is groups_of(second, 64, 1, 3, 64)
    assert groups_of(first, 64, 1, 3, 64) is not groups_of(first, 64, 1, 3, 65)
    assert groups_of(first, 64, 1, 3, 64) is not groups_of(first, 64, 1, 2, 64)
