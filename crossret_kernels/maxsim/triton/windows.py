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
        per_item: of each item, some of them behind its end.
        first_item: the first's.
        n_blocks: of all.
    """

    rows: int
    per_item: int
    first_item: int
    n_blocks: int


class Window(NamedTuple):
    """Some items of contexts with all queries, or some listed pairs, and what was found of them.

    Attributes:
        operands: contexts and queries.
        results: where the best contexts stand, rows `plan.pitch` apart.
        first, size: the items of contexts, or places among the pairs.
        pairs: those that are listed.
    """

    call: MaxSimCall
    plan: MaxSimPlan
    operands: tuple[KernelSide, KernelSide]
    results: Found
    first: int
    size: int
    pairs: Tensor | None

    @property
    def items(self) -> tuple[int, int]:
        """The first item of contexts, and how many."""
        return (self.first, self.size) if self.pairs is None else (0, self.call.n_contexts)

    def grads(self, grad_scores: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The scores' gradients of all pairs or of these, and their strides, by contexts and by queries."""
        if self.pairs is None:
            return grad_scores, self.call.in_order(*grad_scores.stride())
        return grad_scores[self.first : self.first + self.size], (grad_scores.stride(0), 0)

    def listed(self, column: int) -> Listed:
        if self.pairs is None:
            return Listed(*[self.results.indices] * 2)
        n_items = self.call.n_contexts if column == self.call.context_column else self.call.n_queries
        items, order = self.pairs[:, column].sort(stable=True)
        borders = torch.arange(n_items + 1, device=items.device)
        return Listed(order, torch.searchsorted(items, borders))

    def adds(self, is_context: bool) -> bool:
        """Whether gradients of a side belong beside what an earlier window has left."""
        return self.first > 0 and (self.pairs is not None or not is_context)

    def blocks(self, is_context: bool) -> Blocks:
        side = self.call.contexts if is_context else self.call.queries
        wide = is_context or self.call.soft
        rows = min(SumMax.BLOCK_OF_CONTEXTS if wide else SumMax.BLOCK_OF_QUERIES, slots_for(side.width))
        per_item, by_window = -(-side.slots // rows), is_context and self.pairs is None
        first, count = self.items if by_window else (0, side.n_items)
        return Blocks(rows, per_item, first, count * per_item)


def windows(
    call: MaxSimCall, *, index: bool, scores: Tensor | None = None, score_strides: tuple[int, int] = (0, 0)
) -> Iterator[Window]:
    """Windows in which the best contexts were found, their places with `index`; what was found of one is gone with the
    next. Of scores that are made of maxima in memory they are stored, or with `index` the maxima's weights.
    """
    plan, operands = call.plan(index=index, gradients=True), call.operands()
    total = call.pairs.size(0) if call.pairs is not None else call.n_contexts
    shape, unused = (plan.window, plan.pitch), plan.tables.groups

    def room(needed: bool, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=call.device) if needed else unused

    results = Found(
        unused if scores is None else scores, room(index, torch.float32 if call.soft else torch.int32),
        room(plan.kind.VALUES, torch.float32), room(index and call.apart, torch.float32),
    )  # fmt: skip
    strides = Strides(*score_strides, plan.pitch, plan.found_slots)
    for first in range(0, total, plan.window):
        count = min(plan.window, total - first)
        pairs = None if call.pairs is None else call.pairs[first : first + count]
        if index and call.pooling == "max":
            results.indices.fill_(-1)  # all but the best query's stay so
        find(call, plan, operands, results, strides, first if pairs is None else 0, pairs)
        if call.apart:
            pool(call, plan, operands[1], results, strides, first, count, pairs, gradients=index)
        yield Window(call, plan, operands, results, first, count, pairs)
