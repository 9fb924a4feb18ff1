"""Items cut into blocks of rows: every row of every item in its place, and in one block alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.maxsim.row_blocks import BLOCK_ROWS, block_rows, blocks_of, valid_rows_of
from crossret_kernels.ragged import Ragged

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def sides(sizes: list[int]) -> tuple[Ragged, Ragged]:
    """Items of these lengths, packed and padded."""
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    longest = max(sizes) + 2
    return (
        Ragged(torch.empty(sum(sizes), 1), offsets, None),
        Ragged(torch.empty(len(sizes), longest, 1), None, torch.tensor(sizes)),
    )


@given(sizes=lengths, largest=st.sampled_from(BLOCK_ROWS))
def test_blocks_hold_every_row(sizes: list[int], largest: int) -> None:
    all_first_rows = np.cumsum([0, *sizes]), np.arange(len(sizes)) * (max(sizes) + 2)
    for side, first_rows in zip(sides(sizes), all_first_rows, strict=True):
        plan = blocks_of(side, largest)
        assert plan.size <= largest
        borders = plan.borders.tolist()
        table = plan.table.tolist()
        assert borders == plan.on_host.tolist()
        assert len(table) == plan.count
        for item, size in enumerate(sizes):
            rows = []
            for row, left, owner, start in table[borders[item] : borders[item + 1]]:
                assert owner == item
                assert row == first_rows[item] + start
                assert left == size - start
                rows += range(start, start + min(left, plan.size))
            assert rows == list(range(size))


@given(sizes=lengths)
def test_valid_rows_are_all_that_is_no_padding(sizes: list[int]) -> None:
    for side in sides(sizes):
        plan = valid_rows_of(side)
        assert plan.count == sum(sizes)
        width = 0 if side.offsets is not None else side.values.size(1)
        expected = [
            (int(start) if side.offsets is not None else item * width) + place
            for item, (size, start) in enumerate(zip(sizes, np.cumsum([0, *sizes]), strict=False))
            for place in range(size)
        ]
        assert plan.rows.tolist() == expected
        assert plan.items.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
        assert plan.starts.tolist() == np.cumsum([0, *sizes])[:-1].tolist()


def test_plans_are_made_once() -> None:
    first, second = (sides([3, 70, 18])[0] for _ in range(2))
    assert blocks_of(first, 64) is blocks_of(second, 64)
    assert blocks_of(first, 64) is not blocks_of(first, 32)
    assert valid_rows_of(first) is valid_rows_of(second)
    assert valid_rows_of(first) is not valid_rows_of(sides([3, 70, 17])[0])


def test_blocks_suit_the_items() -> None:
    sizes = {12: 16, 36: 64, 300: 64, 1024: 64}
    assert {length: block_rows(np.array([length] * 5), 64) for length in sizes} == sizes
    assert block_rows(np.array([1024]), 16) == 16
