"""Items in groups that a Triton kernel walks over side by side, each item in its own columns of a tile.

Of a tile's C columns every item of a group of `abreast` has C / abreast, and so many of its rows pass at a time. Items
of one group are of like lengths: a group takes as long as its longest. Plans are made on the host in NumPy, once for
every set of lengths, and kept on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from crossret_kernels.kept_plans import kept_plan_of_side, on_device
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import EMPTY, Ints, first_rows_of, lengths_of

PROCESSORS = 256  # programs that run at a time on a large device
GROUP_COST = 2  # steps that take what a group costs besides its steps


@dataclass(frozen=True)
class ItemGroups:
    """A side's items in groups, the longest first; what is not whole groups ends in places that no item has.

    Attributes:
        bits: log₂ of `abreast`.
        slots: (windows, groups, abreast, 3) int32 on the device: an item's first row, counted through all items' rows,
            padding included; its length; and which it is, −1 where there is none: the rows are then another's.
    """

    bits: int
    slots: Tensor

    @property
    def groups(self) -> int:
        """Of a window."""
        return self.slots.size(1)


def by_length(lengths: Ints, window: int) -> Ints:
    """(windows, window): of so many items at a time all, the longest first; −1 behind the last."""
    windows = -(-len(lengths) // window)
    order = np.full(windows * window, EMPTY)
    order[: len(lengths)] = np.lexsort((-lengths, np.arange(len(lengths)) // window))
    return order.reshape(windows, window)


def best_abreast(ordered: Ints, columns: int, depth: int, n_tiles: int) -> int:
    """How many items a group takes: many leave few columns without a row, few leave more programs.

    Args:
        ordered: (windows, window) lengths, the longest first.
        columns: of a tile.
        depth: rows that pass through a column in a step.
        n_tiles: how often every group is walked over.
    """

    def cost(abreast: int) -> float:
        steps = -(-ordered[:, ::abreast] * abreast // (depth * columns))
        return float((steps + GROUP_COST).sum() * n_tiles / PROCESSORS + steps.max(initial=0))

    return min((1 << bit for bit in range(columns.bit_length())), key=cost)


def groups_of(side: Ragged, columns: int, depth: int, window: int, n_tiles: int) -> ItemGroups:
    """The side's items in groups of one window of items each, made at the first call with its lengths.

    The arguments are `best_abreast`'s; of `n_tiles` the order of magnitude counts.
    """
    magnitude = 1 << (n_tiles - 1).bit_length()

    def make() -> ItemGroups:
        lengths = lengths_of(side)
        order = by_length(lengths, window)
        abreast = best_abreast(np.where(order == EMPTY, 0, lengths[order]), columns, depth, magnitude)
        padded = np.full((len(order), -(-window // abreast) * abreast), EMPTY)
        padded[:, :window] = order
        slots = padded.reshape(len(order), -1, abreast)
        readable = np.where(slots == EMPTY, np.maximum(slots[:, :, :1], 0), slots)
        table = np.stack([first_rows_of(side)[readable], lengths[readable], slots], -1)
        return ItemGroups(abreast.bit_length() - 1, *on_device(side.values.device, table))

    return kept_plan_of_side(ItemGroups, (columns, depth, window, magnitude), side, make)
