"""Sum-Max's gradients in Triton as an operation, with bounded workspaces: the best contexts are found again, for as
many items or pairs at a time as there is memory for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.gpu.sides import Side
from crossret_kernels.maxsim.triton.backward import add
from crossret_kernels.maxsim.triton.call import MaxSimCall
from crossret_kernels.maxsim.triton.forward import Found, Strides, find
from crossret_kernels.maxsim.triton.parts import GradientPart


def gradients(grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::maxsim_scores_triton_backward`: of regions and words, empty of a side that needs none."""
    call = MaxSimCall.of(arguments)
    wanted, sides = call.in_order(*arguments[-2:]), (call.contexts, call.queries)  # of contexts, of queries
    is_empty = call.is_empty
    outs = [
        (torch.empty if not is_empty and (side.packed or side.extents is None) else torch.zeros)(
            side.features.shape if needed else (0,), dtype=side.features.dtype, device=call.device
        )
        for side, needed in zip(sides, wanted, strict=True)
    ]
    if not is_empty and any(wanted):
        _add_all(call, grad_scores, wanted, outs)
        outs = [_unordered(out, side) if want else out for out, side, want in zip(outs, sides, wanted, strict=True)]
    return call.in_order(*outs)


def _unordered(out: Tensor, side: Side) -> Tensor:
    """Gradients of rows that a mask has put ahead of others, where they belong."""
    if side.places is None:
        return out
    return torch.empty_like(out).scatter_(1, side.places.unsqueeze(2).expand(out.shape), out)


def _add_all(call: MaxSimCall, grads: Tensor, wanted: tuple[bool, bool], outs: list[Tensor]) -> None:
    """All pairs, part by part within the workspace; what was found of a part is gone with the next."""
    plan, operands = call.plan(index=True, gradients=True), call.operands()
    total = call.pairs.size(0) if call.pairs is not None else call.n_contexts
    indices = torch.empty(plan.window, plan.pitch, dtype=torch.int32, device=call.device)
    values = torch.empty(indices.shape, dtype=torch.float32, device=call.device) if call.normalize else indices
    found, strides = Found(plan.tables.groups, indices, values), Strides(0, 0, plan.pitch, plan.found_slots)
    for first in range(0, total, plan.window):
        count = min(plan.window, total - first)
        if call.pooling == "max":
            indices.fill_(-1)  # all but the best query's stay so
        if call.pairs is not None:
            pairs, own = call.pairs[first : first + count], grads[first : first + count]
            find(call, plan, operands, found, strides, 0, pairs)
            part = GradientPart(call, plan, operands, own, pairs, found, 0, call.n_contexts, first > 0)
        else:
            find(call, plan, operands, found, strides, first)
            part = GradientPart(call, plan, operands, grads, None, found, first, count, first > 0)
        for of_contexts, needed, out in zip((True, False), wanted, outs, strict=True):
            if needed:
                add(part, of_contexts, out)
