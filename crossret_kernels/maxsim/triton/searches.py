"""Sum-Max in Triton as operations: scores, or the places of the best contexts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.maxsim.triton.call import MaxSimCall
from crossret_kernels.maxsim.triton.forward import find
from crossret_kernels.maxsim.triton.found import Found, Strides
from crossret_kernels.maxsim.triton.windows import windows


def scores(*arguments: Any) -> Tensor:
    """`crossret::maxsim_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = MaxSimCall.of(arguments)
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    if call.is_empty:
        return out.fill_(call.empty_score or 0.0)
    strides = (0, 0) if call.pairs is not None else call.in_order(*out.stride())
    if call.apart:
        for _ in windows(call, index=False, scores=out, score_strides=strides):
            pass
    else:
        plan = call.plan(index=False)
        unused = [plan.tables.groups] * 3
        find(call, plan, call.operands(), Found(out, *unused), Strides(*strides, 0, 0))
    empty = call.empty()
    return out if empty is None else out.masked_fill_(empty, call.empty_score or 0.0)


def indices(*arguments: Any) -> Tensor:
    """`crossret::maxsim_argmax_triton`: the best contexts (n_images, n_captions, Q), or (P, Q) of pairs, int64."""
    call = MaxSimCall.of(arguments, places=True)
    width = call.queries.slots if arguments[-1] is None else arguments[-1]
    out = torch.full((*call.shape, width), -1, dtype=torch.int64, device=call.device)
    if call.is_empty or not width:
        return out
    plan = call.plan(index=True)
    context_stride, query_stride = (width, width) if call.pairs is not None else call.in_order(*out.stride()[:2])
    unused = plan.tables.groups
    find(call, plan, call.operands(), Found(unused, out, unused, unused), Strides(0, 0, context_stride, query_stride))
    return in_masks_places(out, call)


def in_masks_places(out: Tensor, call: MaxSimCall) -> Tensor:
    """Best contexts, of rows that masks keep, as places among all rows of their items."""
    if call.contexts.places is not None:
        places = call.of_pairs(call.contexts.places, is_context=True).expand(*call.shape, -1)
        out = torch.where(out < 0, -1, places.gather(-1, out.clamp(min=0)))
    if call.queries.places is not None:
        places = call.of_pairs(call.queries.places, is_context=False).expand(*call.shape, -1)
        out = torch.full_like(out, -1).scatter_(-1, places, out)
    return out
