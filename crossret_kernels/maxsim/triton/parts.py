"""Parts of a call of Sum-Max, one after the other within a bounded workspace, that gradients are made of in Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.triton.call import KernelSide, MaxSimCall, MaxSimPlan
from crossret_kernels.maxsim.triton.found import Found


class Listed(NamedTuple):
    """The order of pairs by one column, and where each item's begin in it; anything where none are listed."""

    order: Tensor
    begins: Tensor


class Blocks(NamedTuple):
    """Blocks of rows of one side, of which gradients are made.

    Attributes:
        rows: of one, at most.
        of_item: of each item, some of them behind its end.
        first_item: the first's.
        n_blocks: of all.
    """

    rows: int
    of_item: int
    first_item: int
    n_blocks: int


@dataclass
class GradientPart:
    """Some items of contexts against all queries, or some listed pairs, with the best contexts found.

    Attributes:
        operands: contexts and queries.
        grads: of the scores, or of these pairs.
        pairs: those that are listed.
        found: where the best contexts stand, rows `plan.pitch` apart.
        first, count: the items of contexts.
        later: whether an earlier part has left its gradients where this one's belong.
    """

    call: MaxSimCall
    plan: MaxSimPlan
    operands: tuple[KernelSide, KernelSide]
    grads: Tensor
    pairs: Tensor | None
    found: Found
    first: int
    count: int
    later: bool

    def listed(self, column: int) -> Listed:
        if self.pairs is None:
            return Listed(*[self.found.indices] * 2)
        n_items = self.call.n_contexts if column == self.call.context_column else self.call.n_queries
        items, order = self.pairs[:, column].sort(stable=True)
        borders = torch.arange(n_items + 1, device=items.device)
        return Listed(order, torch.searchsorted(items, borders))

    @property
    def strides(self) -> tuple[int, int]:
        """Strides of the scores' gradients, by contexts and by queries."""
        return (self.grads.stride(0), 0) if self.pairs is not None else self.call.in_order(*self.grads.stride())

    def adds(self, of_contexts: bool) -> bool:
        """Whether gradients of a side belong beside what an earlier part has left."""
        return self.later and (self.pairs is not None or not of_contexts)

    def blocks(self, of_contexts: bool) -> Blocks:
        side = self.call.contexts if of_contexts else self.call.queries
        wide = of_contexts or self.call.soft
        rows = min(SumMax.BLOCK_OF_CONTEXTS if wide else SumMax.BLOCK_OF_QUERIES, slots_for(side.width))
        of_item, own = -(-side.slots // rows), of_contexts and self.pairs is None
        first, count = (self.first, self.count) if own else (0, side.n_items)
        return Blocks(rows, of_item, first, count * of_item)
