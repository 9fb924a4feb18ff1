"""What a search for the best contexts is asked for on a GPU, and what is made of it: scores, or places.

Backends search by a function `find(call, plan, sides, found, strides, index_stride, first, pairs)`: it stores scores
or best contexts, of the plan's window from the first item of contexts on, or of listed pairs. `strides` are the
scores', by items of contexts and of queries; best contexts stand `index_stride` apart for items of contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.maxsim.calls import Call, Plan

Find = Callable[..., None]


class Found(NamedTuple):
    """Where kernels store what they find; what is not wanted is anything.

    Attributes:
        scores: of pairs.
        indices: the best context of every query, of any integer dtype; those of an item of queries stand from `firsts`
            of it on in the row of an item of contexts, or of a listed pair.
        maxima: their similarities in the same places, float32.
        firsts: of items of queries.
    """

    scores: Tensor
    indices: Tensor
    maxima: Tensor
    firsts: Tensor


def scores(call: Call, find: Find) -> Tensor:
    """Scores (n_images, n_captions), or (P,) of pairs, float32."""
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    plan = call.plan(index=False) if out.numel() else None
    if plan is not None:
        unused = plan.contexts.lengths
        strides = (0, 0) if call.pairs is not None else call.in_order(*out.stride())
        find(call, plan, call.sides(plan), Found(out, unused, unused, unused), strides)
    return filled(out, call, plan, call.empty_score or 0.0)


def indices(call: Call, width: int | None, find: Find) -> Tensor:
    """The best contexts (n_images, n_captions, Q), or (P, Q) of pairs, int64."""
    plan = call.plan(index=True) if 0 not in call.shape else None
    if width is None:
        width = 0 if plan is None else plan.queries.longest
    own_width = width if plan is None or plan.queries.kept is None else plan.queries.longest
    out = torch.full((*call.shape, own_width), -1, dtype=torch.int64, device=call.device)
    if plan is None or not width:
        return out
    context_stride, query_stride = (own_width, 0) if call.pairs is not None else call.in_order(*out.stride()[:2])
    firsts = torch.arange(call.queries.n_items, device=call.device) * query_stride
    unused = plan.contexts.lengths
    find(call, plan, call.sides(plan), Found(unused, out, unused, firsts), (0, query_stride), context_stride)
    return filled(in_masks_places(out, call, plan), call, plan, -1)


def in_masks_places(out: Tensor, call: Call, plan: Plan) -> Tensor:
    """Best contexts, of rows that masks keep, as places among all rows of their items."""
    if plan.contexts.kept is not None:
        firsts = call.of_pairs(plan.contexts.firsts, of_contexts=True)
        rows = plan.contexts.kept[(out + firsts[..., None]).clamp(max=len(plan.contexts.kept) - 1)]
        out = torch.where(out < 0, -1, rows.long() % call.contexts.features.size(1))
    if call.queries.masked and call.queries.integers is not None:
        mask = call.queries.integers.to(out.device)
        ranks = call.of_pairs(torch.where(mask, mask.cumsum(1) - 1, -1), of_contexts=False).expand(*out.shape[:-1], -1)
        out = out.gather(-1, ranks.clamp(min=0)).masked_fill_(ranks < 0, -1)
    return out


def filled(made: Tensor, call: Call, plan: Plan | None, value: float) -> Tensor:
    """What was made of pairs, with this value for those of an item without rows; without a plan all are."""
    if call.empty_score is None:
        return made
    if plan is None:
        return made.fill_(value)
    empty = call.empty(plan)
    if empty is None:
        return made
    return made.masked_fill_(empty.view(*empty.shape, *[1] * (made.dim() - empty.dim())), value)
