"""Which tile attention takes in Triton: by the items' lengths, how well they fill it, and the chip's shared memory.

A slot that no item fills is computed like any other, and larger tiles load less for the same product: from the few
tiles that the kernels are good at, the cheapest is taken that the items of a call fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from crossret_kernels.kept_plans import kept_plan
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import fill_of, items_of, lengths_of

LEAST = 16  # slots: the least side of a product in Triton
SMALL, LARGE = 64, 128  # a tile has at most one large side, or its Gram matrix and weights leave no room
# Places for items in a tile. Shorter items than a large tile's eight slots each, on average, leave some empty.
CONTEXT_SEGMENTS, QUERY_SEGMENTS = 16, 32
# What a cell costs in a tile of so many slots of contexts by queries, compared with the others: instructions of the
# compiled kernel, spilled registers among them, and bytes that the product loads. Counted, not yet measured.
COSTS = {
    "forward": {(SMALL, SMALL): 1.2, (LARGE, SMALL): 1.0, (SMALL, LARGE): 1.2},
    "backward": {(SMALL, SMALL): 1.1, (LARGE, SMALL): 1.0, (SMALL, LARGE): 1.75},
}
STAGES = {"forward": 3, "backward": 2}
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}  # by compute capability
OTHERS_KIB = 99
LARGE_KIB = 163  # what a tile with a large side takes at most


@dataclass(frozen=True)
class Tiling:
    """M slots of contexts by N of queries, D in steps of K; and how Triton runs it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


def tiling(contexts: Ragged, queries: Ragged, whole: bool, kernel: Literal["forward", "backward"]) -> Tiling:
    """The tile for these sides, unless they are `too_long`; `whole` for listed pairs, which have a tile each."""
    longest = items_of(contexts).longest, items_of(queries).longest
    if whole:
        m, n = (max(LEAST, 1 << (rows - 1).bit_length()) for rows in longest)
    else:
        large = large_fit(contexts.values.device)
        costs = {
            (m, n): cost / (_fill(contexts, m, CONTEXT_SEGMENTS) * _fill(queries, n, QUERY_SEGMENTS))
            for (m, n), cost in COSTS[kernel].items()
            if longest[0] <= m and longest[1] <= n and (large or m == n)
        }
        m, n = min(costs, key=lambda sides: costs[sides])
    k = 32 if contexts.values.dtype == torch.float32 else 64
    return Tiling(m, n, k, 8 if m * n > SMALL * SMALL else 4, STAGES[kernel])


def _fill(side: Ragged, size: int, segments: int) -> float:
    return kept_plan(float, (size, segments), side, lambda: fill_of(lengths_of(side), size, segments))


def large_fit(device: torch.device) -> bool:
    """Whether the device's cores have the shared memory for a tile with a large side."""
    if device.type != "cuda":
        return True
    return SHARED_KIB.get(torch.cuda.get_device_capability(device), OTHERS_KIB) >= LARGE_KIB


def too_long(*sides: Ragged) -> bool:
    """Whether items of these sides share no tile on the chip: it is in memory then (`long_tiling`)."""
    shorter, longer = sorted(items_of(side).longest for side in sides)
    return shorter > SMALL or longer > (LARGE if large_fit(sides[0].values.device) else SMALL)
