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

from crossret_kernels.maxsim.calls import Call, Plan, Rows, Side
from crossret_kernels.maxsim.searches import Find, Found

Add = Callable[["Part", bool, Tensor], None]


class Listed(NamedTuple):
    """The order of pairs by one column, and where each item's begin in it; anything where none are listed."""

    order: Tensor
    begins: Tensor


@dataclass
class Part:
    """Some items of contexts against all queries, or some listed pairs, with the best contexts found.

    Attributes:
        sides: contexts and queries.
        grads: of the scores, or of these pairs.
        pairs: those that are listed.
        found: where the best contexts stand, rows `pitch` apart.
        first, count: the items of contexts.
        later: whether an earlier part has left its gradients where this one's belong.
    """

    call: Call
    plan: Plan
    sides: tuple[Side, Side]
    grads: Tensor
    pairs: Tensor | None
    found: Found
    pitch: int
    first: int
    count: int
    later: bool

    def listed(self, column: int) -> Listed:
        if self.pairs is None:
            return Listed(*[self.found.indices] * 2)
        n_items = (self.call.contexts if column == self.call.context_column else self.call.queries).n_items
        items, order = self.pairs[:, column].sort(stable=True)
        borders = torch.arange(n_items + 1, device=items.device)
        return Listed(order, torch.searchsorted(items, borders))

    @property
    def strides(self) -> tuple[int, int]:
        """Of the scores' gradients, by contexts and by queries."""
        return self.call.in_order(*self.grads.stride())


def gradients(
    call: Call, grad_scores: Tensor, needed: tuple[bool, bool], find: Find, add: Add
) -> tuple[Tensor, Tensor]:
    """Of regions and words, empty of a side that needs none."""
    wanted = call.in_order(*needed)  # of contexts, of queries
    plan = call.plan(index=True, gradients=True) if grad_scores.numel() and any(wanted) else None
    if plan is None:
        outs = [
            torch.zeros_like(side.features, memory_format=torch.contiguous_format)
            if needed
            else side.features.new_empty(0)
            for side, needed in zip((call.contexts, call.queries), wanted, strict=True)
        ]
        return call.in_order(*outs)
    sides = call.sides(plan)
    outs = [
        (torch.empty if rows.covered else torch.zeros)(
            side.features.shape if needed else (0,), dtype=side.features.dtype, device=call.device
        )
        for side, rows, needed in zip(sides, (plan.contexts, plan.queries), wanted, strict=True)
    ]
    _add_all(call, plan, sides, grad_scores, wanted, outs, find, add)
    contexts, queries = (
        _unpacked(out, rows, given.features) if needed else out
        for out, rows, given, needed in zip(
            outs, (plan.contexts, plan.queries), (call.contexts, call.queries), wanted, strict=True
        )
    )
    return call.in_order(contexts, queries)


def _unpacked(out: Tensor, rows: Rows, values: Tensor) -> Tensor:
    """Gradients of the rows that a mask keeps, where they belong."""
    if rows.kept is None:
        return out
    whole = torch.zeros(values.shape, dtype=out.dtype, device=out.device)
    whole.flatten(0, 1).index_copy_(0, rows.kept.long(), out)
    return whole


def _add_all(
    call: Call, plan: Plan, sides: tuple[Side, Side], grads: Tensor, wanted: tuple[bool, bool], outs: list[Tensor],
    find: Find, add: Add,
) -> None:  # fmt: skip
    """All pairs, part by part within the workspace; what was found of a part is gone with the next."""
    most, pitch = plan.window, plan.queries.longest if call.pairs is not None else plan.queries.count
    total = call.pairs.size(0) if call.pairs is not None else call.contexts.n_items
    indices = torch.empty(most, pitch, dtype=torch.int32, device=call.device)
    values = torch.empty(indices.shape, dtype=torch.float32, device=call.device) if call.keeps_maxima else indices
    found, empty = Found(plan.contexts.lengths, indices, values, plan.valid.starts), call.empty(plan)
    for first in range(0, total, most):
        count = min(most, total - first)
        if call.pooling == "max":
            indices.fill_(-1)  # all but the best query's stay so
        if call.pairs is not None:
            chunk = slice(first, first + count)
            pairs = call.pairs[chunk]
            find(call, plan, sides, found, (0, 0), pitch, 0, pairs)
            if empty is not None:
                indices[:count].masked_fill_(empty[chunk, None], -1)
            part = Part(
                call, plan, sides, grads[chunk], pairs, found, pitch, 0, call.contexts.n_items, first > 0
            )  # fmt: skip
        else:
            find(call, plan, sides, found, (0, 0), pitch, first)
            if empty is not None:
                of_items = (empty if call.context_column == 0 else empty.T)[first : first + count]
                indices[:count].masked_fill_(of_items.index_select(1, plan.valid.items), -1)
            part = Part(call, plan, sides, grads, None, found, pitch, first, count, first > 0)
        for of_contexts, needed, out in zip((True, False), wanted, outs, strict=True):
            if needed:
                add(part, of_contexts, out)
