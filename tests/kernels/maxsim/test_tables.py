"""Tables of Sum-Max's kernels for GPUs: every row in its place, once; few tiles, groups that cost least."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.maxsim.triton.tables import EMPTY, GROUP_COST, PROCESSORS, best_group_bits, groups_of, tiles_of
from tests.kernels.strategies import examples

some_lengths = st.lists(st.integers(0, 32), min_size=1, max_size=60).filter(any)
any_lengths = st.lists(st.integers(0, 300), min_size=1, max_size=12)


# --- tiles


@examples(100)
@given(some_lengths, st.sampled_from((32, 64, 128)))
def test_every_row_has_one_slot(lengths: list[int], size: int) -> None:
    tiles = tiles_of(np.array(lengths), size)
    assert {table.shape for table in tiles} == {(len(tiles[0]), size)}
    seen = []
    for places, owners, items in zip(*tiles, strict=True):
        n_items = owners.max() + 1
        assert (items[n_items:] == EMPTY).all()
        for place, item in enumerate(items[:n_items].tolist()):
            assert places[owners == place].tolist() == list(range(lengths[item]))
            seen.append(item)
        assert not places[owners == EMPTY].any()
    assert sorted(seen) == [item for item, length in enumerate(lengths) if length]


@examples(100)
@given(some_lengths, st.sampled_from((32, 64)))
def test_tiles_are_those_of_first_fit_decreasing(lengths: list[int], size: int) -> None:
    tiles: list[list[int]] = []
    for length in sorted(filter(None, lengths), reverse=True):
        tile = next((tile for tile in tiles if sum(tile) + length <= size), None)
        if tile is None:
            tiles.append(tile := [])
        tile.append(length)
    planned = [sorted(lengths[item] for item in row[row >= 0]) for row in tiles_of(np.array(lengths), size)[2]]
    assert sorted(planned) == sorted(sorted(tile) for tile in tiles)


# --- groups


@given(sizes=any_lengths, bits=st.integers(0, 6), window=st.integers(1, 14))
def test_groups_hold_every_item_of_their_window(sizes: list[int], bits: int, window: int) -> None:
    table, abreast = groups_of(np.array(sizes), bits, window), 1 << bits
    assert (table.shape[0], table.shape[2]) == (-(-len(sizes) // window), abreast)
    for number, groups in enumerate(table.tolist()):
        held = [item for group in groups for item in group if item >= 0]
        assert sorted(held) == list(range(number * window, min((number + 1) * window, len(sizes))))
        assert len(held) > (len([group for group in groups if group[0] >= 0]) - 1) * abreast  # no gap before it
        longest = [sizes[item] for item in held]
        assert longest == sorted(longest, reverse=True)


@given(count=st.integers(1, 40), length=st.integers(0, 300), n_tiles=st.integers(1, 5000))
def test_no_other_number_of_items_costs_less(count: int, length: int, n_tiles: int) -> None:
    def cost(abreast: int) -> float:
        steps = [-(-length // (64 // abreast)) for _ in range(0, count, abreast)]
        return sum(step + GROUP_COST for step in steps) * n_tiles / PROCESSORS + max(steps)

    chosen = best_group_bits(count, length, 64, 1, n_tiles)
    assert all(cost(1 << chosen) <= cost(1 << bit) + 1e-9 for bit in range(7))
