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
from crossret_kernels.maxsim.triton.parts import GradientPart
from crossret_kernels.maxsim.triton.windows import windows


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
    for window in windows(call, index=True):
        plan, operands, found, first, count, pairs = window
        own = grads if pairs is None else grads[first : first + count]
        items = (first, count) if pairs is None else (0, call.n_contexts)
        part = GradientPart(call, plan, operands, own, pairs, found, *items, first > 0)
        for of_contexts, needed, out in zip((True, False), wanted, outs, strict=True):
            if needed:
                add(part, of_contexts, out)
