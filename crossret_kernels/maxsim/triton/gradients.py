"""Sum-Max's gradients in Triton as an operation, with bounded workspaces: the best contexts are found again, for as
many items or pairs at a time as there is memory for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.gpu.sides import Side
from crossret_kernels.gpu.triton_launch import encoded_sizes, launch
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.triton.backward import (
    GradientKind,
    GradientSizes,
    GradientSums,
    context_gradients,
    query_gradients,
    sum_of_runs,
)
from crossret_kernels.maxsim.triton.call import MaxSimCall
from crossret_kernels.maxsim.triton.found import soft_found
from crossret_kernels.maxsim.triton.soft import soft_gradients
from crossret_kernels.maxsim.triton.windows import Window, windows


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
        for part in windows(call, index=True):  # what was found of one is gone with the next
            for of_contexts, needed, out in zip((True, False), wanted, outs, strict=True):
                if needed:
                    add(part, grad_scores, of_contexts, out)
        outs = [_unordered(out, side) if want else out for out, side, want in zip(outs, sides, wanted, strict=True)]
    return call.in_order(*outs)


def _unordered(out: Tensor, side: Side) -> Tensor:
    """Gradients of rows that a mask has put ahead of others, where they belong."""
    if side.places is None:
        return out
    return torch.empty_like(out).scatter_(1, side.places.unsqueeze(2).expand(out.shape), out)


def add(part: Window, grad_scores: Tensor, of_contexts: bool, out: Tensor) -> None:
    """Gradients of one side, to all that is in this part."""
    (grads, strides), (first, count) = part.grads(grad_scores), part.items
    call, plan, found, blocks = part.call, part.plan, part.plan.kind, part.blocks(of_contexts)
    own, others = (call.contexts, call.queries) if of_contexts else (call.queries, call.contexts)
    of_own, of_others = call.sizes if of_contexts else call.sizes[::-1]
    # Without tensor cores a product's operands lie in registers: its steps are short, and many threads share it.
    multiplied = of_contexts or call.soft
    in_registers = multiplied and found.PRECISION == "ieee"
    step = part.blocks(not of_contexts).rows if call.soft else SumMax.QUERIES if of_contexts else SumMax.ITEMS
    step = min(step, 16) if in_registers else step
    n_others = count if not of_contexts else call.n_queries if call.soft else plan.pitch
    if part.pairs is not None:
        n_others = part.pairs.size(0) // own.n_items
    width = SumMax.SOFT_WIDTH if call.soft and not in_registers else SumMax.WIDTH
    by_items = call.soft or (of_contexts and part.pairs is not None)
    n_steps = n_others if by_items else n_others // step
    kind = GradientKind(
        found.LISTED, found.CONTEXT_COLUMN, of_contexts, call.options.pooling == "avg", call.apart, call.normalize,
        blocks.rows, min(step, slots_for(others.width)) if by_items else step, min(width, slots_for(found.D)),
        multiplied and out.dtype == torch.float16, found.PRECISION,
        min(found.K, 128 // out.element_size()), found.D, found.UNIT,
    )  # fmt: skip
    n_columns = -(-found.D // kind.WIDTH)
    most_runs = SumMax.RUNS_BYTES // (4 * (found.D + 1) * of_own.n_rows)
    wanted = SumMax.PROGRAMS_OF_GRADIENTS // (blocks.n_blocks * n_columns)
    n_runs = max(1, min(wanted, n_steps // SumMax.LEAST_STEPS, most_runs))
    alongs = torch.empty(n_runs, of_own.n_rows if n_runs > 1 else 1, dtype=torch.float32, device=out.device)
    sums = GradientSums(out, alongs.new_empty(*alongs.shape, found.D) if n_runs > 1 else alongs, alongs)
    plain = GradientSizes(
        of_own, of_others, *strides, plan.pitch, plan.found_slots, n_runs, first,
        count, blocks.first_item, blocks.of_item, call.n_queries if call.soft else plan.pitch,
        int(part.adds(of_contexts)),
    )  # fmt: skip
    sizes = encoded_sizes(plain)
    key = call.key(of_contexts, max(plan.pitch, *strides) >= 2**30 - 2)
    side, other = part.operands if of_contexts else part.operands[::-1]
    listed = part.listed(found.CONTEXT_COLUMN if of_contexts else 1 - found.CONTEXT_COLUMN)
    # In a tuple, kernels would be compiled for where their memory begins.
    pairs = part.found.indices if part.pairs is None else part.pairs
    best = soft_found(call, part.found) if call.soft else part.found
    arguments: tuple[Any, ...] = (side, other, plan.tables, pairs, listed, grads, best, sums, sizes)
    kernel = soft_gradients if call.soft else context_gradients if of_contexts else query_gradients
    warps = 8 if in_registers or (call.soft and kind.WIDTH > SumMax.WIDTH) else 4
    launch(kernel, (blocks.n_blocks, n_columns, n_runs), arguments, kind, key, warps)
    programs = blocks.n_blocks * kind.ROWS if n_runs > 1 else 0  # another batch may have several
    launch(sum_of_runs, (programs, n_columns, 1), (side, sums, sizes), kind, key, 4)
