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
    needs, sides = call.in_order(*arguments[-2:]), (call.contexts, call.queries)  # of contexts, of queries
    is_empty = call.is_empty
    outs = [
        (torch.empty if not is_empty and (side.packed or side.extents is None) else torch.zeros)(
            side.features.shape if needed else (0,), dtype=side.features.dtype, device=call.device
        )
        for side, needed in zip(sides, needs, strict=True)
    ]
    if not is_empty and any(needs):
        for part in windows(call, index=True):  # what was found of one is gone with the next
            for is_context, needed, out in zip((True, False), needs, outs, strict=True):
                if needed:
                    add(part, grad_scores, is_context, out)
        outs = [_unordered(out, side) if want else out for out, side, want in zip(outs, sides, needs, strict=True)]
    return call.in_order(*outs)


def _unordered(out: Tensor, side: Side) -> Tensor:
    """Gradients of rows that a mask has put ahead of others, where they belong."""
    if side.places is None:
        return out
    return torch.empty_like(out).scatter_(1, side.places.unsqueeze(2).expand(out.shape), out)


def add(part: Window, grad_scores: Tensor, is_context: bool, out: Tensor) -> None:
    """Gradients of one side, to all that is in this part."""
    (grads, strides), (first, count) = part.grads(grad_scores), part.items
    call, plan, search, blocks = part.call, part.plan, part.plan.kind, part.blocks(is_context)
    target, source = (call.contexts, call.queries) if is_context else (call.queries, call.contexts)
    target_sizes, source_sizes = call.sizes if is_context else call.sizes[::-1]
    # Without tensor cores a product's operands lie in registers: its steps are short, and many threads share it.
    is_product = is_context or call.soft
    in_registers = is_product and search.PRECISION == "ieee"
    step = part.blocks(not is_context).rows if call.soft else SumMax.QUERIES if is_context else SumMax.ITEMS
    step = min(step, 16) if in_registers else step
    n_others = count if not is_context else call.n_queries if call.soft else plan.pitch
    if part.pairs is not None:
        n_others = part.pairs.size(0) // target.n_items
    width = SumMax.SOFT_WIDTH if call.soft and not in_registers else SumMax.WIDTH
    per_item = call.soft or (is_context and part.pairs is not None)
    n_steps = n_others if per_item else n_others // step
    kind = GradientKind(
        search.LISTED, search.CONTEXT_COLUMN, is_context, call.options.pooling == "avg", call.apart, call.normalize,
        blocks.rows, min(step, slots_for(source.width)) if per_item else step, min(width, slots_for(search.D)),
        is_product and out.dtype == torch.float16, search.PRECISION,
        min(search.K, 128 // out.element_size()), search.D, search.UNIT,
    )  # fmt: skip
    n_columns = -(-search.D // kind.WIDTH)
    most_runs = SumMax.RUNS_BYTES // (4 * (search.D + 1) * target_sizes.n_rows)
    full_runs = SumMax.PROGRAMS_OF_GRADIENTS // (blocks.n_blocks * n_columns)
    n_runs = max(1, min(full_runs, n_steps // SumMax.LEAST_STEPS, most_runs))
    alongs = torch.empty(n_runs, target_sizes.n_rows if n_runs > 1 else 1, dtype=torch.float32, device=out.device)
    sums = GradientSums(out, alongs.new_empty(*alongs.shape, search.D) if n_runs > 1 else alongs, alongs)
    plain = GradientSizes(
        target_sizes, source_sizes, *strides, plan.pitch, plan.found_slots, n_runs, first,
        count, blocks.first_item, blocks.per_item, call.n_queries if call.soft else plan.pitch,
        int(part.adds(is_context)),
    )  # fmt: skip
    sizes = encoded_sizes(plain)
    key = call.key(is_context, max(plan.pitch, *strides) >= 2**30 - 2)
    side, other = part.operands if is_context else part.operands[::-1]
    listed = part.listed(search.CONTEXT_COLUMN if is_context else 1 - search.CONTEXT_COLUMN)
    # In a tuple, kernels would be compiled for where their memory begins.
    pairs = part.results.indices if part.pairs is None else part.pairs
    best = soft_found(call, part.results) if call.soft else part.results
    arguments: tuple[Any, ...] = (side, other, plan.tables, pairs, listed, grads, best, sums, sizes)
    kernel = soft_gradients if call.soft else context_gradients if is_context else query_gradients
    warps = 8 if in_registers or (call.soft and kind.WIDTH > SumMax.WIDTH) else 4
    launch(kernel, (blocks.n_blocks, n_columns, n_runs), arguments, kind, key, warps)
    programs = blocks.n_blocks * kind.ROWS if n_runs > 1 else 0  # another batch may have several
    launch(sum_of_runs, (programs, n_columns, 1), (side, sums, sizes), kind, key, 4)
