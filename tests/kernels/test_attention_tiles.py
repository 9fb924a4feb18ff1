"""Which tile attention takes in Triton."""

from __future__ import annotations

import torch

from crossret_kernels.cross_attention.tiling import tiling
from crossret_kernels.inputs import as_ragged

CAPTIONS = list(range(6, 21)) * 4


def slots(regions: list[int], words: list[int], whole: bool = False) -> list[tuple[int, int]]:
    """Of a tile's contexts and queries, by the kernels of scores and of gradients."""
    sides = [
        as_ragged([torch.zeros(n, 4) for n in lengths], None, None, ("", "", ""), "").joined()
        for lengths in (regions, words)
    ]
    tiles = [tiling(*sides, whole, kernel) for kernel in ("forward", "backward")]
    return [(tile.m, tile.n) for tile in tiles]


def test_tiles_follow_how_items_fill_them() -> None:
    assert slots([36] * 9, CAPTIONS) == [(128, 64), (128, 64)]
    assert slots([49] * 9, CAPTIONS) == [(128, 64), (64, 64)]
    # Three images fill 128 slots better than one fills 64; gradients would spill too many registers.
    assert slots(CAPTIONS, [36] * 9) == [(64, 128), (128, 64)]


def test_tiles_have_room_for_the_longest_items() -> None:
    assert slots([36] * 8 + [65], CAPTIONS) == [(128, 64), (128, 64)]
    assert slots(CAPTIONS, [36] * 8 + [65]) == [(64, 128), (64, 128)]


def test_a_listed_pair_has_the_least_tile() -> None:
    assert slots([36] * 9, CAPTIONS, whole=True) == [(64, 32), (64, 32)]
    assert slots([3], [100], whole=True) == [(16, 128), (16, 128)]
