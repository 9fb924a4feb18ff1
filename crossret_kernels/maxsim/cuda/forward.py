"""Sum-Max's search for the best contexts in CUDA C++ (csrc/maxsim/search.cuh): what is launched, over which sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.gpu.cuda_library import constant, constants, numbers
from crossret_kernels.gpu.tuning import CudaSumMax
from crossret_kernels.maxsim import searches
from crossret_kernels.maxsim.calls import Operand, Plan
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.cuda.call import CudaCall, processors
from crossret_kernels.maxsim.searches import Found, Strides
from crossret_kernels.padded.arithmetic import POOLINGS


def scores(*arguments: Any) -> Tensor:
    """`crossret::maxsim_scores_cuda`."""
    return searches.scores(CudaCall.of(arguments), find)


def indices(*arguments: Any) -> Tensor:
    """`crossret::maxsim_argmax_cuda`."""
    return searches.indices(CudaCall.of(arguments, places=True), arguments[-1], find)


def find(
    call: CudaCall, plan: Plan, operands: tuple[Operand, Operand], found: Found, strides: Strides,
    first: int = 0, pairs: Tensor | None = None,
) -> None:  # fmt: skip
    """Stores scores or best contexts: of the plan's window from the first item of contexts on, or of listed pairs."""
    contexts, queries = operands
    sizes = sizes_of(call, plan, strides, first)
    scales = (queries.scales, contexts.scales) if call.normalize else (None, None)
    sides = queries.features, contexts.features, *scales, call.queries.extents, call.contexts.extents
    if call.pairs is None:
        tables = (plan.tables.groups, plan.tables.items) if plan.planned else (None, None)
        launches.search(*sides, *tables, *_stored(call, plan, found), [], sizes)
        return
    pairs = call.pairs if pairs is None else pairs
    most = max(1, CudaSumMax.LISTED_BYTES // (CudaSumMax.SLOT_BYTES * call.queries.slots))
    for start in range(0, pairs.size(0), most):
        part, own = pairs, found
        if pairs.size(0) > most:
            part, own = pairs[start : start + most], Found(*(x[start : start + most] for x in found))
        launches.search(*sides, None, None, *_stored(call, plan, own), _ordered(call, plan, part), sizes)


def _stored(call: CudaCall, plan: Plan, found: Found) -> tuple[Tensor | None, ...]:
    """(Where queries' items start, scores, maxima, indices): what is wanted of them."""
    if not plan.kind.places:
        return None, found.scores, None, None
    maxima = found.maxima if call.keeps_maxima and found.indices.dtype is torch.int32 else None
    return plan.tables.starts if plan.found_slots == 0 else None, None, maxima, found.indices


def _ordered(call: CudaCall, plan: Plan, pairs: Tensor) -> list[Tensor]:
    """The pairs; where enough of them share items of contexts with their order by these, see `PairsCall` in csrc."""
    n_contexts, queries = call.n_contexts, call.queries
    if pairs.size(0) < CudaSumMax.SHARED_BY * n_contexts:
        return [pairs]
    items, order = pairs[:, call.context_column].sort(stable=True)
    if queries.extents is None:
        lengths = torch.full_like(order, queries.slots)
    else:
        lengths = (queries.extents.diff() if queries.packed else queries.extents).clamp(0, queries.slots)
        lengths = lengths[pairs[:, 1 - call.context_column][order]]
    ends = lengths.cumsum(0)
    lasts = torch.searchsorted(items, torch.arange(n_contexts, device=items.device), right=True) - 1
    rows = torch.where(lasts < 0, 0, ends[lasts])
    size = constants("maxsim_tile_rows")[plan.kind.wide]
    tiles = torch.cat([rows[:1], rows.diff()]).add_(size - 1).div_(size, rounding_mode="floor").cumsum(0)
    return [pairs, order, ends, rows, tiles]


def sizes_of(call: CudaCall, plan: Plan, strides: Strides, first: int) -> Tensor:
    """As `maxsim_search` in csrc takes them."""
    kind, listed, contexts, longest = plan.kind, call.pairs is not None, call.contexts, call.queries.slots
    count = call.n_contexts if listed else min(plan.window, call.n_contexts - first)
    n_groups = -(-count >> plan.bits)
    stages = -(-call.dim * contexts.features.element_size() // constant("maxsim_stage_bytes"))
    of_group = -(-(contexts.slots << plan.bits) // constants("maxsim_tile_columns")[kind.wide]) * stages
    n_runs, run_groups = runs(n_groups, plan.n_tiles, of_group, processors(call.device))
    return numbers(
        "maxsim_search",
        **call.side_numbers("queries", of_contexts=False),
        **call.side_numbers("contexts", of_contexts=True),
        wide=kind.wide,
        places=kind.places,
        tf32=kind.tf32,
        pooling=POOLINGS.index("sum" if call.pooling == "none" else call.pooling),
        resident_rows=kind.resident_rows,
        bits=plan.bits,
        first_item=first,
        count=count,
        first_group=first // plan.window * plan.groups,
        n_groups=n_groups,
        run_groups=run_groups,
        n_tiles=plan.n_tiles,
        tile_items=plan.tile_items,
        n_runs=n_runs,
        score_context=strides.score_context,
        score_query=strides.score_query,
        index_context=strides.index_context,
        query_stride=0 if listed else strides.index_query,
        tiles_of_pair=-(-longest // constants("maxsim_tile_rows")[kind.wide]),
        pitch=strides.index_context if listed and kind.places else longest,
        context_column=call.context_column,
    )


def runs(n_groups: int, n_tiles: int, group_stages: int, n_processors: int) -> tuple[int, int]:
    """(How many runs, the groups of each) to share groups of contexts out into, for each of the tiles."""
    wanted = max(1, min(n_groups, -(-CudaSumMax.BLOCKS * n_processors // n_tiles)))
    run_groups = max(-(-n_groups // wanted), min(n_groups, -(-CudaSumMax.LEAST_STAGES // group_stages)))
    return -(-n_groups // run_groups), run_groups
