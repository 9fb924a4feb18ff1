"""Sum-Max's gradients on a GPU, from the place of every query's best context, with bounded workspaces.

The best contexts are found again, for as many items or pairs at a time as there is memory for. Backends make gradients
of them by a function `add(part, of_contexts, out)`: of one side, to all that is in the part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.gpu.sides import Side
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.calls import Call, Operand, Plan
from crossret_kernels.maxsim.searches import Find, Found, Strides

Add = Callable[["Part", bool, Tensor], None]


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
class Part:
    """Some items of contexts against all queries, or some listed pairs, with the best contexts found.

    Attributes:
        operands: contexts and queries.
        grads: of the scores, or of these pairs.
        pairs: those that are listed.
        found: where the best contexts stand, rows `plan.pitch` apart.
        first, count: the items of contexts.
        later: whether an earlier part has left its gradients where this one's belong.
    """

    call: Call
    plan: Plan
    operands: tuple[Operand, Operand]
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
        """Of the scores' gradients, by contexts and by queries."""
        return (self.grads.stride(0), 0) if self.pairs is not None else self.call.in_order(*self.grads.stride())

    def adds(self, of_contexts: bool) -> bool:
        """Whether gradients of a side belong beside what an earlier part has left."""
        return self.later and (self.pairs is not None or not of_contexts)

    def blocks(self, of_contexts: bool) -> Blocks:
        side = self.call.contexts if of_contexts else self.call.queries
        rows = min(SumMax.BLOCK_OF_CONTEXTS if of_contexts else SumMax.BLOCK_OF_QUERIES, slots_for(side.width))
        of_item, own = -(-side.slots // rows), of_contexts and self.pairs is None
        first, count = (self.first, self.count) if own else (0, side.n_items)
        return Blocks(rows, of_item, first, count * of_item)


def gradients(
    call: Call, grad_scores: Tensor, needed: tuple[bool, bool], find: Find, add: Add
) -> tuple[Tensor, Tensor]:
    """Of regions and words, empty of a side that needs none."""
    wanted, sides = call.in_order(*needed), (call.contexts, call.queries)  # of contexts, of queries
    nothing = call.nothing
    outs = [
        (torch.empty if not nothing and (side.packed or side.extents is None) else torch.zeros)(
            side.features.shape if needed else (0,), dtype=side.features.dtype, device=call.device
        )
        for side, needed in zip(sides, wanted, strict=True)
    ]
    if not nothing and any(wanted):
        _add_all(call, grad_scores, wanted, outs, find, add)
        outs = [_unordered(out, side) if want else out for out, side, want in zip(outs, sides, wanted, strict=True)]
    return call.in_order(*outs)


def _unordered(out: Tensor, side: Side) -> Tensor:
    """Gradients of rows that a mask has put ahead of others, where they belong."""
    if side.places is None:
        return out
    return torch.empty_like(out).scatter_(1, side.places.unsqueeze(2).expand(out.shape), out)


def _add_all(
    call: Call, grads: Tensor, wanted: tuple[bool, bool], outs: list[Tensor], find: Find, add: Add
) -> None:  # fmt: skip
    """All pairs, part by part within the workspace; what was found of a part is gone with the next."""
    plan, operands = call.plan(index=True, gradients=True), call.operands()
    total = call.pairs.size(0) if call.pairs is not None else call.n_contexts
    indices = torch.empty(plan.window, plan.pitch, dtype=torch.int32, device=call.device)
    values = torch.empty(indices.shape, dtype=torch.float32, device=call.device) if call.keeps_maxima else indices
    found, strides = Found(plan.tables.groups, indices, values), Strides(0, 0, plan.pitch, plan.found_slots)
    for first in range(0, total, plan.window):
        count = min(plan.window, total - first)
        if call.pooling == "max":
            indices.fill_(-1)  # all but the best query's stay so
        if call.pairs is not None:
            pairs, own = call.pairs[first : first + count], grads[first : first + count]
            find(call, plan, operands, found, strides, 0, pairs)
            part = Part(call, plan, operands, own, pairs, found, 0, call.n_contexts, first > 0)
        else:
            find(call, plan, operands, found, strides, first)
            part = Part(call, plan, operands, grads, None, found, first, count, first > 0)
        for of_contexts, needed, out in zip((True, False), wanted, outs, strict=True):
            if needed:
                add(part, of_contexts, out)
