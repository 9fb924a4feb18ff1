"""Sum-Max's search for the best contexts in CUDA C++ (csrc/maxsim/search.cuh): what is launched, over which sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.gpu.cuda_library import constant, constants, numbers
from crossret_kernels.gpu.tuning import CudaSumMax
from crossret_kernels.maxsim import searches
from crossret_kernels.maxsim.calls import Call, Plan, Side
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.cuda.call import CudaCall, processors, side_numbers
from crossret_kernels.maxsim.searches import Found
from crossret_kernels.padded.arithmetic import POOLINGS


def scores(*arguments: Any) -> Tensor:
    """`crossret::maxsim_scores_cuda`."""
    return searches.scores(CudaCall.of(arguments), find)


def indices(*arguments: Any) -> Tensor:
    """`crossret::maxsim_argmax_cuda`."""
    return searches.indices(CudaCall.of(arguments, places=True), arguments[-1], find)


def find(
    call: Call, plan: Plan, sides: tuple[Side, Side], found: Found, score_strides: tuple[int, int],
    index_stride: int = 0, first: int = 0, pairs: Tensor | None = None,
) -> None:  # fmt: skip
    """Stores scores or best contexts: of the plan's window from the first item of contexts on, or of listed pairs."""
    place = (score_strides, index_stride, first)
    sizes = plan.launches.get(place)
    if sizes is None:
        sizes = plan.launches[place] = sizes_of(call, plan, score_strides, index_stride, first)
    contexts, queries = sides
    scales = (queries.scales, contexts.scales) if call.normalize else (None, None)
    tables = (queries.firsts, queries.lengths, plan.groups)
    if call.pairs is None:
        assert plan.tiles is not None
        launches.search(
            queries.features, contexts.features, *scales, *tables, *plan.tiles, *_stored(call, plan, found), [], sizes
        )
        return
    pairs = call.pairs if pairs is None else pairs
    most = max(1, CudaSumMax.LISTED_BYTES // (CudaSumMax.SLOT_BYTES * plan.queries.longest))
    for start in range(0, pairs.size(0), most):
        part, own = pairs, found
        if pairs.size(0) > most:
            part = pairs[start : start + most]
            own = found._replace(
                scores=found.scores[start : start + most],
                indices=found.indices[start : start + most],
                maxima=found.maxima[start : start + most],
            )
        launches.search(
            queries.features, contexts.features, *scales, *tables, None, None, None, *_stored(call, plan, own),
            _ordered(call, plan, part), sizes,
        )  # fmt: skip


def _stored(call: Call, plan: Plan, found: Found) -> tuple[Tensor | None, ...]:
    """(Where queries' items start, scores, maxima, indices): what is wanted of them."""
    if not plan.kind.places:
        return None, found.scores, None, None
    gradients = found.indices.dtype is torch.int32
    return (
        found.firsts if gradients else None,
        None,
        found.maxima if gradients and call.keeps_maxima else None,
        found.indices,
    )


def _ordered(call: Call, plan: Plan, pairs: Tensor) -> list[Tensor]:
    """The pairs; where enough of them share items of contexts with their order by these, see `PairsCall` in csrc."""
    n_contexts = call.contexts.n_items
    if pairs.size(0) < CudaSumMax.SHARED_BY * n_contexts:
        return [pairs]
    items, order = pairs[:, call.context_column].sort(stable=True)
    ends = plan.queries.lengths[pairs[:, 1 - call.context_column][order]].cumsum(0)
    lasts = torch.searchsorted(items, torch.arange(n_contexts, device=items.device), right=True) - 1
    rows = torch.where(lasts < 0, 0, ends[lasts])
    size = constants("maxsim_tile_rows")[plan.kind.wide]
    tiles = torch.cat([rows[:1], rows.diff()]).add_(size - 1).div_(size, rounding_mode="floor").cumsum(0)
    return [pairs, order, ends, rows, tiles]


def sizes_of(call: Call, plan: Plan, score_strides: tuple[int, int], index_stride: int, first: int) -> Tensor:
    """As `maxsim_search` in csrc takes them."""
    kind, listed = plan.kind, call.pairs is not None
    count = min(plan.window, call.contexts.n_items - first)
    n_groups = -(-count >> plan.bits)
    stages = -(-plan.dim * call.contexts.features.element_size() // constant("maxsim_stage_bytes"))
    of_group = -(-(plan.contexts.longest << plan.bits) // constants("maxsim_tile_columns")[kind.wide]) * stages
    n_runs, run_groups = runs(n_groups, plan.n_tiles, of_group, processors(call.device))
    longest = plan.queries.longest
    return numbers(
        "maxsim_search",
        **side_numbers("queries", plan.queries),
        **side_numbers("contexts", plan.contexts),
        wide=kind.wide,
        places=kind.places,
        tf32=kind.tf32,
        pooling=POOLINGS.index("sum" if call.pooling == "none" else call.pooling),
        resident_rows=kind.resident_rows,
        bits=plan.bits,
        first_item=first,
        count=count,
        first_group=first // plan.window * plan.groups.size(1),
        n_groups=n_groups,
        run_groups=run_groups,
        n_tiles=plan.n_tiles,
        n_runs=n_runs,
        score_context=score_strides[0],
        score_query=score_strides[1],
        index_context=index_stride,
        query_stride=0 if listed else score_strides[1],
        tiles_of_pair=-(-longest // constants("maxsim_tile_rows")[kind.wide]),
        pitch=index_stride if listed and kind.places else longest,
        context_column=call.context_column,
    )


def runs(n_groups: int, n_tiles: int, group_stages: int, n_processors: int) -> tuple[int, int]:
    """(How many runs, the groups of each) to share groups of contexts out into, for each of the tiles."""
    wanted = max(1, min(n_groups, -(-CudaSumMax.BLOCKS * n_processors // n_tiles)))
    run_groups = max(-(-n_groups // wanted), min(n_groups, -(-CudaSumMax.LEAST_STAGES // group_stages)))
    return -(-n_groups // run_groups), run_groups
