"""What a search for the best contexts is asked for on a GPU, and what is made of it: scores, or places.

Backends search by a function `find(call, plan, operands, found, strides, first, pairs)`: it stores scores or best
contexts, of the plan's window from the first item of contexts on, or of listed pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.maxsim.calls import Call

Find = Callable[..., None]


class Found(NamedTuple):
    """Where kernels store what they find; what is not wanted is anything.

    Attributes:
        scores: of pairs.
        indices: the best context of every query, of any integer dtype; −1 in an item without rows.
        maxima: their similarities in the same places, float32.
    """

    scores: Tensor
    indices: Tensor
    maxima: Tensor


class Strides(NamedTuple):
    """Of scores, and of best contexts, by items of contexts or listed pairs and by items of queries.

    Where the last is 0, the plan's `starts` tell.
    """

    score_context: int
    score_query: int
    index_context: int
    index_query: int


def scores(call: Call, find: Find) -> Tensor:
    """Scores (n_images, n_captions), or (P,) of pairs, float32."""
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    if call.nothing:
        return out.fill_(call.empty_score or 0.0)
    plan = call.plan(index=False)
    unused = plan.tables.groups
    strides = (0, 0) if call.pairs is not None else call.in_order(*out.stride())
    find(call, plan, call.operands(), Found(out, unused, unused), Strides(*strides, 0, 0))
    empty = call.empty()
    return out if empty is None else out.masked_fill_(empty, call.empty_score or 0.0)


def indices(call: Call, width: int | None, find: Find) -> Tensor:
    """The best contexts (n_images, n_captions, Q), or (P, Q) of pairs, int64."""
    width = call.queries.slots if width is None else width
    out = torch.full((*call.shape, width), -1, dtype=torch.int64, device=call.device)
    if call.nothing or not width:
        return out
    plan = call.plan(index=True)
    context_stride, query_stride = (width, width) if call.pairs is not None else call.in_order(*out.stride()[:2])
    unused = plan.tables.groups
    find(call, plan, call.operands(), Found(unused, out, unused), Strides(0, 0, context_stride, query_stride))
    return in_masks_places(out, call)


def in_masks_places(out: Tensor, call: Call) -> Tensor:
    """Best contexts, of rows that masks keep, as places among all rows of their items."""
    if call.contexts.places is not None:
        places = call.of_pairs(call.contexts.places, of_contexts=True).expand(*call.shape, -1)
        out = torch.where(out < 0, -1, places.gather(-1, out.clamp(min=0)))
    if call.queries.places is not None:
        places = call.of_pairs(call.queries.places, of_contexts=False).expand(*call.shape, -1)
        out = torch.full_like(out, -1).scatter_(-1, places, out)
    return out
