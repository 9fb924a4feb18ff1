"""Parts of a call of Sum-Max in Triton whose best contexts lie in a bounded workspace, one after the other, and what
gradients are made of in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.triton.call import KernelSide, MaxSimCall, MaxSimPlan
from crossret_kernels.maxsim.triton.forward import find
from crossret_kernels.maxsim.triton.found import Found, Strides
from crossret_kernels.maxsim.triton.pooling import pool


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


class Window(NamedTuple):
    """Some items of contexts with all queries, or some listed pairs, and what was found of them.

    Attributes:
        operands: contexts and queries.
        found: where the best contexts stand, rows `plan.pitch` apart.
        first, size: the items of contexts, or places among the pairs.
        pairs: those that are listed.
    """

    call: MaxSimCall
    plan: MaxSimPlan
    operands: tuple[KernelSide, KernelSide]
    found: Found
    first: int
    size: int
    pairs: Tensor | None

    @property
    def items(self) -> tuple[int, int]:
        """The first item of contexts, and how many."""
        return (self.first, self.size) if self.pairs is None else (0, self.call.n_contexts)

    def grads(self, of_scores: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The scores' gradients of all pairs or of these, and their strides, by contexts and by queries."""
        if self.pairs is None:
            return of_scores, self.call.in_order(*of_scores.stride())
        return of_scores[self.first : self.first + self.size], (of_scores.stride(0), 0)

    def listed(self, column: int) -> Listed:
        if self.pairs is None:
            return Listed(*[self.found.indices] * 2)
        n_items = self.call.n_contexts if column == self.call.context_column else self.call.n_queries
        items, order = self.pairs[:, column].sort(stable=True)
        borders = torch.arange(n_items + 1, device=items.device)
        return Listed(order, torch.searchsorted(items, borders))

    def adds(self, of_contexts: bool) -> bool:
        """Whether gradients of a side belong beside what an earlier window has left."""
        return self.first > 0 and (self.pairs is not None or not of_contexts)

    def blocks(self, of_contexts: bool) -> Blocks:
        side = self.call.contexts if of_contexts else self.call.queries
        wide = of_contexts or self.call.soft
        rows = min(SumMax.BLOCK_OF_CONTEXTS if wide else SumMax.BLOCK_OF_QUERIES, slots_for(side.width))
        of_item, own = -(-side.slots // rows), of_contexts and self.pairs is None
        first, count = self.items if own else (0, side.n_items)
        return Blocks(rows, of_item, first, count * of_item)


def windows(
    call: MaxSimCall, *, index: bool, scores: Tensor | None = None, score_strides: tuple[int, int] = (0, 0)
) -> Iterator[Window]:
    """Windows in which the best contexts were found, their places with `index`; what was found of one is gone with the
    next. Of scores that are made of maxima in memory they are stored, or with `index` the maxima's weights.
    """
    plan, operands = call.plan(index=index, gradients=True), call.operands()
    total = call.pairs.size(0) if call.pairs is not None else call.n_contexts
    shape, unused = (plan.window, plan.pitch), plan.tables.groups

    def room(wanted: bool, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=call.device) if wanted else unused

    found = Found(
        unused if scores is None else scores, room(index, torch.float32 if call.soft else torch.int32),
        room(plan.kind.VALUES, torch.float32), room(index and call.apart, torch.float32),
    )  # fmt: skip
    strides = Strides(*score_strides, plan.pitch, plan.found_slots)
    for first in range(0, total, plan.window):
        count = min(plan.window, total - first)
        pairs = None if call.pairs is None else call.pairs[first : first + count]
        if index and call.pooling == "max":
            found.indices.fill_(-1)  # all but the best query's stay so
        find(call, plan, operands, found, strides, first if pairs is None else 0, pairs)
        if call.apart:
            pool(call, plan, operands[1], found, strides, first, count, pairs, gradients=index)
        yield Window(call, plan, operands, found, first, count, pairs)
