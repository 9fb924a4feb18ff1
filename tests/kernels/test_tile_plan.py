"""Plans of tiles: every row in one slot, items whole, as few tiles as first-fit decreasing takes, made once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import EMPTY, Ints, fill_of, items_of, plan_tiles, tiles_of
from tests.kernels.strategies import examples

CPU = torch.device("cpu")
some_lengths = st.lists(st.integers(1, 32), min_size=1, max_size=60)


def first_rows(lengths: Ints, gap: int = 0) -> Ints:
    """Of items that follow one another, a gap of padding behind each."""
    return np.concatenate([[0], (lengths + gap).cumsum()[:-1]])


@examples(100)
@given(some_lengths, st.sampled_from((32, 64, 128)), st.sampled_from((1, 4, 16)), st.integers(0, 3))
def test_every_row_has_one_slot(lengths: list[int], size: int, segments: int, gap: int) -> None:
    array = np.array(lengths)
    starts = first_rows(array, gap)
    plan = plan_tiles(array, starts, size, segments, CPU)
    assert plan.rows.shape == plan.owners.shape == (plan.tiles, size)
    assert plan.items.shape == plan.lengths.shape == (plan.tiles, segments)
    seen = []
    for rows, owners, items, counts in zip(plan.rows, plan.owners, plan.items, plan.lengths, strict=True):
        for place, (item, count) in enumerate(zip(items.tolist(), counts.tolist(), strict=True)):
            own = rows[owners == place].tolist()
            assert len(own) == count
            if item == EMPTY:
                assert count == 0
                continue
            assert own == list(range(starts[item], starts[item] + lengths[item]))
            seen.append(item)
        assert set(rows[owners == EMPTY].tolist()) <= {int(rows[0])}
    assert sorted(seen) == list(range(len(lengths)))


@examples(100)
@given(some_lengths, st.sampled_from((32, 64)), st.sampled_from((2, 16)))
def test_tiles_are_those_of_first_fit_decreasing(lengths: list[int], size: int, segments: int) -> None:
    tiles: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = (tile for tile in tiles if sum(tile) + length <= size and len(tile) < segments)
        tile = next(fitting, None)
        if tile is None:
            tiles.append(tile := [])
        tile.append(length)
    plan = plan_tiles(np.array(lengths), first_rows(np.array(lengths)), size, segments, CPU)
    planned = [sorted(row[row > 0].tolist()) for row in plan.lengths]
    assert sorted(planned) == sorted(sorted(tile) for tile in tiles)
    assert fill_of(np.array(lengths), size, segments) == pytest.approx(sum(lengths) / (size * len(tiles)))


def test_captions_fill_their_tiles() -> None:
    lengths = np.random.default_rng(0).integers(6, 21, 5000)
    assert fill_of(lengths, 64, 32) > 0.97
    assert fill_of(lengths, 128, 16) > 0.97


def test_an_item_longer_than_a_tile() -> None:
    with pytest.raises(ValueError, match="an item of 33 rows does not fit a tile of 32"):
        plan_tiles(np.array([1, 33]), np.array([0, 1]), 32, 16, CPU)


def test_no_items() -> None:
    nothing = np.empty(0, np.int64)
    assert plan_tiles(nothing, nothing, 32, 16, CPU).tiles == 0
    assert fill_of(nothing, 32, 16) == 1


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (Ragged(torch.zeros(2, 4, 3), None, torch.tensor([4, 5])), "item 1 has length 5, it must lie in 1..4"),
        (Ragged(torch.zeros(2, 4, 3), None, torch.tensor([0, 4])), "item 0 has length 0"),
        (Ragged(torch.zeros(8, 3), torch.tensor([0, 3, 9]), None), "reach from 0 to 9, but there are 8 rows"),
        (Ragged(torch.zeros(8, 3), torch.tensor([1, 3, 8]), None), "reach from 1 to 8"),
        (Ragged(torch.zeros(8, 3), torch.tensor([0, 9, 8]), None), "item 0 has length 9"),
        (Ragged(torch.zeros(8, 3), torch.tensor([0, 4, 4, 8]), None), "item 1 has length 0"),
    ],
)
def test_no_plan_reaches_beyond_the_features(side: Ragged, message: str) -> None:
    """Lengths that nothing else looked at, as inside torch.compile."""
    for make in (items_of, lambda side: tiles_of(side, 16, 4)):
        with pytest.raises(ValueError, match=message):
            make(side)
