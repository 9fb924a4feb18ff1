"""Sum-Max's gradients in CUDA C++ (csrc/maxsim/gradients.cuh): what is launched, and over which sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from crossret_kernels.gpu.cuda_library import constant, numbers
from crossret_kernels.gpu.tuning import CudaSumMax
from crossret_kernels.maxsim import gradients as host
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.cuda.call import CudaCall, processors, side_numbers
from crossret_kernels.maxsim.cuda.forward import find
from crossret_kernels.maxsim.gradients import Part


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::maxsim_scores_cuda_backward`."""
    grad_scores, *others = arguments
    call = CudaCall.of(tuple(others))
    return host.gradients(call, grad_scores, (others[-2], others[-1]), find, add)


def add(part: Part, of_contexts: bool, out: Tensor) -> None:
    """Gradients of one side, to all that is in this part."""
    call, plan = part.call, part.plan
    own, others = (plan.contexts, plan.queries) if of_contexts else (plan.queries, plan.contexts)
    side, other = part.sides if of_contexts else part.sides[::-1]
    first, last = 0, int(own.borders[-1])
    n_units = -(-(others.count if of_contexts else part.count) // CudaSumMax.GRADIENT_UNIT)
    if part.pairs is not None:
        n_units = (
            part.pairs.size(0)
            // len(own.firsts)
            * (-(-others.longest // CudaSumMax.GRADIENT_UNIT) if of_contexts else 1)
        )
    elif of_contexts:
        first, last = (int(own.borders[item]) for item in (part.first, part.first + part.count))
    if first == last:
        return
    n_columns = -(-plan.dim // constant("maxsim_gradient_columns"))
    most_runs = CudaSumMax.RUNS_BYTES // (4 * (plan.dim + 1) * own.n_rows)
    wanted = CudaSumMax.GRADIENT_BLOCKS * processors(call.device) // ((last - first) * n_columns)
    n_runs = max(1, min(wanted, n_units // CudaSumMax.LEAST_UNITS, most_runs))
    listed = part.listed(call.context_column if of_contexts else 1 - call.context_column)
    later = part.later and (part.pairs is not None or not of_contexts)
    strides = (part.grads.stride(0), 0) if part.pairs is not None else part.strides
    scales = (side.scales, other.scales) if call.normalize else (None, None)
    sizes = numbers(
        "maxsim_gradients",
        **side_numbers("own", own),
        **side_numbers("others", others),
        of_contexts=of_contexts,
        average=call.pooling == "avg",
        add=later,
        first_block=first,
        n_blocks=last - first,
        block_rows=own.block,
        grad_context=strides[0],
        grad_query=strides[1],
        index_context=part.pitch,
        first_item=part.first,
        count=part.count,
        longest=plan.queries.longest,
        n_runs=n_runs,
        context_column=call.context_column,
    )
    launches.gradients(
        side.features, other.features, *scales, side.lengths, other.firsts, other.lengths, own.blocks, part.grads,
        part.found.indices, part.found.maxima, list(plan.valid),
        [] if part.pairs is None else [part.pairs, *listed], out, sizes,
    )  # fmt: skip
