"""Backend "triton" of Sum-Max: gradients of both sides' features, with bounded workspaces.

The best contexts are found again, for as many items or pairs at a time as there is memory for, and every sum is taken
in the same order every time. Sums of half-precision features are float32, rounded once for each of those times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.maxsim.row_blocks import RowBlocks, ValidRows, blocks_of, valid_rows_of
from crossret_kernels.maxsim.sides import Side, launch, precisions, slots_for
from crossret_kernels.maxsim.triton import Call, Places, find
from crossret_kernels.maxsim.triton_backward import context_gradients, query_gradients, sum_of_runs

WORKSPACE_BYTES = 64 * 2**20
PAIRS_AT_ONCE = 2**20  # their order takes 40 bytes each
RUNS_BYTES = 32 * 2**20  # of what runs of sums leave
PROGRAMS = 1024  # wanted of a launch
LEAST_STEPS = 4  # of a run
ROWS = 16  # queries whose gradients a program sums
QUERIES = 64  # of a step of a program that sums contexts' gradients
ITEMS = 4  # whose best contexts are gathered at a time
WIDTH = 128  # columns of features of a program


@dataclass(frozen=True)
class Part:
    """Some items of contexts against all queries, or some listed pairs, with the best contexts found.

    Attributes:
        call: of the listed pairs.
        grad_scores: as the call has them, or of these pairs.
        places: where the best contexts stand.
        first, count: the items of contexts.
        later: whether an earlier part has left its gradients where this one's belong.
    """

    call: Call
    scales: tuple[Tensor, Tensor]
    grad_scores: Tensor
    places: Places
    first: int
    count: int
    later: bool

    @property
    def found(self) -> tuple[Any, ...]:
        values = self.places.indices if self.places.values is None else self.places.values
        return self.places.indices, values, self.places.context_stride

    @property
    def grads(self) -> tuple[Tensor, int, int]:
        """Gradients of the scores and how far they lie apart by contexts (or pairs) and by queries."""
        grads = self.grad_scores
        if self.call.pairs is not None:
            return grads, grads.stride(0), 0
        return grads, *self.call.in_order(grads.stride(0), grads.stride(1))

    def listed(self, column: int) -> tuple[Tensor, Tensor, Tensor]:
        """(Pairs, their order by this column, where each item's begin in it); anything where none are listed."""
        pairs = self.call.pairs
        if pairs is None:
            return (self.places.indices,) * 3
        n_items = (self.call.contexts if column == self.call.context_column else self.call.queries).n_items
        items, order = pairs[:, column].sort(stable=True)
        return pairs, order, torch.searchsorted(items, torch.arange(n_items + 1, device=pairs.device))

    def constants(self, side: Side) -> dict[str, Any]:
        return {
            "LISTED": self.call.pairs is not None,
            "CONTEXT_COLUMN": self.call.context_column,
            "AVERAGE": self.call.pooling == "avg",
            "NORMALIZE": self.call.normalize,
            "WIDTH": min(WIDTH, slots_for(side.dim, 16)),
        }


def image_and_caption_gradients(grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Gradients of regions and words; of a side that needs none an empty tensor."""
    call = Call.of(arguments, *arguments[7:10])
    wanted = call.in_order(*arguments[10:12])  # of contexts, of queries
    outs = [_new_gradients(side, needed) for side, needed in zip((call.contexts, call.queries), wanted, strict=True)]
    if not grad_scores.numel():
        outs = [out.zero_() for out in outs]
    elif any(wanted):
        for part in _parts(call, grad_scores):
            if wanted[0]:
                _add_of_contexts(part, outs[0])
            if wanted[1]:
                _add_of_queries(part, outs[1])
    of_images, of_captions = call.in_order(*outs)
    return of_images, of_captions


def _new_gradients(side: Side, needed: bool) -> Tensor:
    """Room for the gradients of all rows, zero where no item's row is."""
    shape = side.features.shape if needed else (0,)
    make = torch.empty if side.ragged.padded_lengths is None else torch.zeros
    return make(shape, dtype=side.features.dtype, device=side.features.device)


def _parts(call: Call, grad_scores: Tensor) -> Iterator[Part]:
    """All pairs, part by part within the workspace; what was found of a part is gone with the next."""
    device = call.contexts.features.device
    scales = call.scales()
    valid = _valid(call)
    width = call.queries.table.longest if call.pairs is not None else valid.count
    total = len(call.pairs) if call.pairs is not None else call.contexts.n_items
    most = max(1, min(total, WORKSPACE_BYTES // ((8 if call.normalize else 4) * width)))
    if call.pairs is not None:
        most = min(most, PAIRS_AT_ONCE)
    indices = torch.empty(most, width, dtype=torch.int32, device=device)
    values = torch.empty(most, width, dtype=torch.float32, device=device) if call.normalize else None
    places = Places(indices, values, width, valid.starts)
    for first in range(0, total, most):
        count = min(most, total - first)
        if call.pooling == "max":
            indices.fill_(-1)  # all but the best query's stay so
        if call.pairs is not None:
            chunk = slice(first, first + count)
            part = replace(call, pairs=call.pairs[chunk])
            find(part, scales, None, places, 0, call.contexts.n_items)
            yield Part(part, scales, grad_scores[chunk], places, 0, call.contexts.n_items, first > 0)
        else:
            find(call, scales, None, places, first, most)
            yield Part(call, scales, grad_scores, places, first, count, first > 0)


@dataclass(frozen=True)
class Runs:
    """What the runs of a side's sums leave, float32: (runs, rows, D) of sums, and (runs, rows) of what is along x."""

    count: int
    sums: Tensor
    alongs: Tensor

    @classmethod
    def of(cls, side: Side, n_programs: int, steps: int) -> Runs:
        """As many as give a launch enough programs, each with steps enough."""
        row_bytes = 4 * (side.dim + 1) * side.n_rows
        count = max(1, min(PROGRAMS // n_programs, steps // LEAST_STEPS, RUNS_BYTES // row_bytes))
        n_rows = side.n_rows if count > 1 else 0
        alongs = torch.empty(count, n_rows, dtype=torch.float32, device=side.features.device)
        return cls(count, alongs.new_empty(count, n_rows, side.dim), alongs)


def _valid(call: Call) -> ValidRows:
    return valid_rows_of(call.queries.ragged)


def _add_of_queries(part: Part, out: Tensor) -> None:
    call, queries, contexts = part.call, part.call.queries, part.call.contexts
    blocks, constants = blocks_of(queries.ragged, ROWS), part.constants(queries)
    n_columns = -(-queries.dim // constants["WIDTH"])
    steps = part.count if call.pairs is None else len(call.pairs) // queries.n_items
    runs = Runs.of(queries, blocks.count * n_columns, steps // ITEMS)
    launch(query_gradients, (blocks.count, n_columns, runs.count),
        queries.features, part.scales[1], queries.table.lengths, blocks.table, *queries.strides,
        contexts.features, part.scales[0], contexts.table.first_rows, *contexts.strides,
        *part.listed(1 - call.context_column), *part.grads, *part.found, part.places.firsts, out,
        runs.sums, runs.alongs, runs.count, queries.n_rows, part.first, part.count, queries.dim,
        **constants, ADD=part.later, ROWS=blocks.size, ITEMS=ITEMS, num_warps=4, num_stages=1,
    )  # fmt: skip
    _add_runs(runs, queries, part.scales[1], blocks, 0, blocks.count, out, constants, part.later)


def _add_of_contexts(part: Part, out: Tensor) -> None:
    call, queries, contexts = part.call, part.call.queries, part.call.contexts
    blocks, valid, constants = blocks_of(contexts.ragged, 64), _valid(call), part.constants(contexts)
    first, last = (int(blocks.on_host[item]) for item in (part.first, part.first + part.count))
    dtype = contexts.features.dtype
    precision = precisions(dtype)[0]
    # Without tensor cores a product's operands lie in registers: its steps are short, and many threads share it.
    step, warps = (min(QUERIES, 16), 8) if precision == "ieee" else (QUERIES, 4)
    n_columns = -(-contexts.dim // constants["WIDTH"])
    steps = valid.count // step if call.pairs is None else len(call.pairs) // contexts.n_items
    runs = Runs.of(contexts, (last - first) * n_columns, steps)
    later = part.later and call.pairs is not None
    launch(context_gradients, (last - first, n_columns, runs.count),
        contexts.features, part.scales[0], blocks.table, *contexts.strides,
        queries.features, part.scales[1], queries.table.first_rows, queries.table.lengths, valid.rows, valid.items,
        *queries.strides, *part.listed(call.context_column), *part.grads, *part.found, out,
        runs.sums, runs.alongs, runs.count, contexts.n_rows, part.first, first, valid.count, contexts.dim,
        **constants, ADD=later, ROWS=blocks.size,
        QUERIES=step if call.pairs is None else min(step, slots_for(queries.table.longest, 16)),
        SPLIT=dtype == torch.float16, PRECISION=precision, num_warps=warps, num_stages=3,
    )  # fmt: skip
    _add_runs(runs, contexts, part.scales[0], blocks, first, last, out, constants, later)


def _add_runs(
    runs: Runs, side: Side, scales: Tensor, blocks: RowBlocks, first: int, last: int, out: Tensor,
    constants: dict[str, Any], later: bool,
) -> None:  # fmt: skip
    """Adds up what several runs have left for some blocks' rows."""
    if runs.count > 1:
        launch(sum_of_runs, ((last - first) * blocks.size, -(-side.dim // constants["WIDTH"])),
            runs.sums, runs.alongs, blocks.table, side.features, scales, *side.strides, out,
            runs.count, side.n_rows, first, side.dim,
            NORMALIZE=constants["NORMALIZE"], ADD=later, ROWS=blocks.size, RUNS=16, WIDTH=constants["WIDTH"],
        )  # fmt: skip
