"""Sum-Max's gradients in CUDA C++ (csrc/maxsim/gradients.cuh): what is launched, and over which sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from crossret_kernels.gpu.cuda_library import constant, numbers
from crossret_kernels.gpu.tuning import CudaSumMax
from crossret_kernels.maxsim import gradients as host
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.cuda.call import CudaCall, processors
from crossret_kernels.maxsim.cuda.forward import find
from crossret_kernels.maxsim.gradients import Part


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::maxsim_scores_cuda_backward`."""
    grad_scores, *others = arguments
    call = CudaCall.of(tuple(others))
    return host.gradients(call, grad_scores, (others[-2], others[-1]), find, add)


def add(part: Part, of_contexts: bool, out: Tensor) -> None:
    """Gradients of one side, to all that is in this part."""
    call, plan, blocks = part.call, part.plan, part.blocks(of_contexts)
    assert isinstance(call, CudaCall)
    own, others = (call.contexts, call.queries) if of_contexts else (call.queries, call.contexts)
    side, other = part.operands if of_contexts else part.operands[::-1]
    n_units = -(-(plan.pitch if of_contexts else part.count) // CudaSumMax.GRADIENT_UNIT)
    if part.pairs is not None:
        of_pair = -(-others.slots // CudaSumMax.GRADIENT_UNIT) if of_contexts else 1
        n_units = part.pairs.size(0) // own.n_items * of_pair
    n_columns = -(-call.dim // constant("maxsim_gradient_columns"))
    sizes_of_own = call.side_numbers("own", of_contexts)
    most_runs = CudaSumMax.RUNS_BYTES // (4 * (call.dim + 1) * sizes_of_own["own_rows"])
    wanted = CudaSumMax.GRADIENT_BLOCKS * processors(call.device) // (blocks.n_blocks * n_columns)
    n_runs = max(1, min(wanted, n_units // CudaSumMax.LEAST_UNITS, most_runs))
    listed = part.listed(call.context_column if of_contexts else 1 - call.context_column)
    scales = (side.scales, other.scales) if call.normalize else (None, None)
    sizes = numbers(
        "maxsim_gradients",
        **sizes_of_own,
        **call.side_numbers("others", not of_contexts),
        of_contexts=of_contexts,
        average=call.pooling == "avg",
        add=part.adds(of_contexts),
        first_own=blocks.first_item,
        item_blocks=blocks.of_item,
        n_blocks=blocks.n_blocks,
        block_rows=blocks.rows,
        grad_context=part.strides[0],
        grad_query=part.strides[1],
        index_context=plan.pitch,
        query_slots=plan.found_slots,
        first_item=part.first,
        count=part.count,
        longest=call.queries.slots,
        n_runs=n_runs,
        context_column=call.context_column,
    )
    tables = (None, None) if plan.found_slots else (plan.tables.starts, plan.tables.holders)
    launches.gradients(
        side.features, other.features, *scales, own.extents, others.extents, *tables, part.grads,
        part.found.indices, part.found.maxima, [] if part.pairs is None else [part.pairs, *listed], out, sizes,
    )  # fmt: skip
