"""Tables of Sum-Max's Triton kernels: every row of every item in its place, once; few tiles, groups that cost least."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.maxsim.tables import (
    EMPTY,
    GROUP_COST,
    PROCESSORS,
    Ints,
    Layout,
    best_abreast,
    blocks_of,
    by_length,
    fill_of,
    groups_of,
    tiles_of,
    valid_rows,
)
from tests.kernels.strategies import examples

some_lengths = st.lists(st.integers(1, 32), min_size=1, max_size=60)
any_lengths = st.lists(st.integers(1, 300), min_size=1, max_size=12)
gaps = st.integers(0, 3)


def layout(lengths: list[int], gap: int = 0) -> Layout:
    """Items that follow one another, a gap of padding behind each."""
    array: Ints = np.array(lengths)
    return Layout(np.concatenate([[0], (array + gap).cumsum()[:-1]]), array)


# --- tiles


@examples(100)
@given(some_lengths, st.sampled_from((32, 64, 128)), gaps)
def test_every_row_has_one_slot(lengths: list[int], size: int, gap: int) -> None:
    side = layout(lengths, gap)
    tiles = tiles_of(side, size)
    assert {table.shape for table in tiles} == {(len(tiles[0]), size)}
    seen = []
    for rows, owners, items in zip(*tiles, strict=True):
        n_items = owners.max() + 1
        assert (items[n_items:] == EMPTY).all()
        for place, item in enumerate(items[:n_items].tolist()):
            own = rows[owners == place].tolist()
            assert own == list(range(side.firsts[item], side.firsts[item] + lengths[item]))
            seen.append(item)
        assert set(rows[owners == EMPTY].tolist()) <= {int(rows[0])}
    assert sorted(seen) == list(range(len(lengths)))


@examples(100)
@given(some_lengths, st.sampled_from((32, 64)))
def test_tiles_are_those_of_first_fit_decreasing(lengths: list[int], size: int) -> None:
    tiles: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        tile = next((tile for tile in tiles if sum(tile) + length <= size), None)
        if tile is None:
            tiles.append(tile := [])
        tile.append(length)
    planned = [sorted(lengths[item] for item in row[row >= 0]) for row in tiles_of(layout(lengths), size)[2]]
    assert sorted(planned) == sorted(sorted(tile) for tile in tiles)
    assert fill_of(np.array(lengths), size) == pytest.approx(sum(lengths) / (size * len(tiles)))


def test_captions_fill_their_tiles() -> None:
    lengths = np.random.default_rng(0).integers(6, 21, 5000)
    assert fill_of(lengths, 64) > 0.97
    assert fill_of(lengths, 128) > 0.97


# --- groups


@given(
    sizes=any_lengths,
    gap=gaps,
    columns=st.sampled_from([16, 64]),
    depth=st.sampled_from([1, 4]),
    window=st.integers(1, 14),
    n_tiles=st.sampled_from([1, 10_000]),
)
def test_groups_hold_every_item_of_their_window(
    sizes: list[int], gap: int, columns: int, depth: int, window: int, n_tiles: int
) -> None:
    side = layout(sizes, gap)
    bits, table = groups_of(side, columns, depth, window, n_tiles)
    abreast = 1 << bits
    assert abreast <= columns
    assert (table.shape[0], *table.shape[2:]) == (-(-len(sizes) // window), abreast, 3)
    for number, groups in enumerate(table.tolist()):
        held = [item for group in groups for _, _, item in group if item >= 0]
        assert sorted(held) == list(range(number * window, min((number + 1) * window, len(sizes))))
        assert len(held) > (len([group for group in groups if group[0][2] >= 0]) - 1) * abreast  # no gap before it
        longest = [sizes[item] for item in held]
        assert longest == sorted(longest, reverse=True)
        for group in groups:
            for row, size, item in group:
                assert size <= group[0][1]  # a group takes as many steps as its first
                assert item < 0 or (row, size) == (side.firsts[item], sizes[item])
                assert row + size <= side.firsts[-1] + sizes[-1]


def test_a_group_takes_as_many_items_as_suits_them() -> None:
    def abreast(length: int, count: int, n_tiles: int, depth: int = 4) -> int:
        return best_abreast(np.full((1, count), length), 64, depth, n_tiles)

    assert abreast(36, 1000, 500) == 64  # no column has a row too few
    assert abreast(36, 16, 1) < 8  # few items are shared out among many programs
    assert abreast(300, 1000, 1, depth=1) == 1
    assert abreast(10_000, 3, 1) == 1
    assert abreast(12, 1, 1000) == 1


@given(sizes=any_lengths, n_tiles=st.integers(1, 5000))
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


# --- blocks and rows


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), gap=gaps, size=st.sampled_from((16, 32, 64)))
def test_blocks_hold_every_row(sizes: list[int], gap: int, size: int) -> None:
    side = layout(sizes, gap)
    table, borders = blocks_of(side.firsts, side.lengths, size)
    assert len(table) == borders[-1]
    for item, count in enumerate(sizes):
        rows: list[int] = []
        for row, left, owner, start in table[borders[item] : borders[item + 1]].tolist():
            assert owner == item
            assert row == side.firsts[item] + start
            assert left == count - start
            rows += range(start, start + min(left, size))
        assert rows == list(range(count))


@given(sizes=any_lengths, gap=gaps)
def test_valid_rows_are_all_that_is_no_padding(sizes: list[int], gap: int) -> None:
    side = layout(sizes, gap)
    rows, items, starts = valid_rows(side)
    expected = [first + place for first, size in zip(side.firsts, sizes, strict=True) for place in range(size)]
    assert rows.tolist() == expected
    assert items.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert starts.tolist() == np.cumsum([0, *sizes])[:-1].tolist()
