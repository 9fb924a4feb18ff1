"""Gradients of backend "triton" of stacked cross attention where items are too long for a tile on the chip.

Everything is recomputed, and every sum is taken in the same order every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.cross_attention.long_tiling import LongTiling, long_tiling
from crossret_kernels.cross_attention.triton import Call
from crossret_kernels.cross_attention.triton_gradients import (
    SORTED_PAIRS,
    Sums,
    finish,
    rectangle_size,
    rectangles,
    together_or_apart,
)
from crossret_kernels.cross_attention.triton_long import gram_runs, long_constants
from crossret_kernels.cross_attention.triton_long_backward import long_backward
from crossret_kernels.cross_attention.triton_long_features import (
    add_gram_products,
    item_gram_gradients,
    long_feature_gradients,
)
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import Side, launch

CELL_BYTES = 128 * 2**20  # of units: similarities, weights, gradients and what goes with them
GRAM_BYTES = 16 * 2**20  # of Gram matrices, and as much of their gradients
MOST_ROWS, MOST_COLUMNS = 256, 256  # of tiles of several items: all units of a launch have cells of their own
WIDTH = 128  # columns of features a program sums the gradients of
STEP_BYTES = 128  # of a column of the other side's features at a time


def add_gradients(call: Call, grad_scores: Tensor, of_contexts: Tensor, of_queries: Tensor) -> None:
    """Both sides' gradients, of a side that needs none an empty tensor; they begin as zeros."""
    whole = call.pairs is not None
    tile = long_tiling(call.contexts.ragged, call.queries.ragged, whole, MOST_ROWS, MOST_COLUMNS)
    if whole:
        _add_of_listed_pairs(call, grad_scores, tile, of_contexts, of_queries)
        return
    plans = call.contexts.tiles(tile.rows, tile.items), call.queries.tiles(tile.columns, tile.items)
    for outs in together_or_apart(plans, of_contexts, of_queries):
        _add_of_tiles(call, grad_scores, tile, plans, *outs)


Plans = tuple[TilePlan, TilePlan] | tuple[None, None]


class Units:
    """What `long_backward` leaves of units, and the gradients of their contexts' Gram matrices."""

    def __init__(self, n_units: int, n_grams: int, tile: LongTiling, device: torch.device) -> None:
        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        self.cells, self.weights, self.gradients, self.statistics, self.relevances, self.factors = (
            floats(n_units, size) for size in unit_sizes(tile)
        )
        self.used = torch.empty(n_units, dtype=torch.int32, device=device)
        self.grams = floats(n_grams, tile.rows, tile.gram_columns)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.cells, self.weights, self.gradients, self.statistics, self.relevances, self.factors, self.used
        )  # fmt: skip


def unit_sizes(tile: LongTiling) -> tuple[int, ...]:
    """Floats of a unit's cells, weights, gradients, statistics, relevances and factors."""
    return (*(tile.cells,) * 3, 2 * tile.items * tile.rows, 4 * tile.items * tile.columns, tile.columns)


def most_units(tile: LongTiling) -> int:
    return max(1, CELL_BYTES // (4 * sum(unit_sizes(tile))))


def _add_of_tiles(
    call: Call, grad_scores: Tensor, tile: LongTiling, plans: tuple[TilePlan, TilePlan], of_contexts: Tensor,
    of_queries: Tensor,
) -> None:  # fmt: skip
    """Rectangle by rectangle of tiles, as large as the memory of their units allows."""
    normalize = call.options.normalize
    contexts = Sums(call.contexts, plans[0], call.context_norms, of_contexts, normalize)
    queries = Sums(call.queries, plans[1], call.query_norms, of_queries, normalize)
    n_grams = GRAM_BYTES // (4 * tile.rows * tile.gram_columns)
    height, width = rectangle_size(contexts, queries, most_units(tile), n_grams)
    units = Units(height * width, height, tile, of_contexts.device)
    score_strides = (grad_scores.stride(call.context_column), grad_scores.stride(1 - call.context_column))

    for own_contexts, own_queries, grams in rectangles(
        contexts, queries, width, lambda run: gram_runs(call, plans[0], tile, run, height)
    ):
        launch(long_backward, (len(own_contexts) * len(own_queries),),
            *call.sides(*plans), grad_scores, grad_scores, grams, grad_scores, *score_strides,
            *units.tensors, own_contexts.start, own_queries.start, len(own_queries), 0,
            tile.rows, tile.columns, tile.gram_columns, call.contexts.dim, *call.numbers,
            VECTORS=False, **long_constants(call, tile),
        )  # fmt: skip
        if of_contexts.numel():
            sums = contexts.of(own_contexts.start)
            _add_of_grams(call, tile, plans, units, own_contexts, own_queries, None, 0, sums)
            _add_of_similarities(call, tile, plans, units, own_contexts, own_queries, None, 0, sums, True)
        if of_queries.numel():
            sums = queries.of(own_queries.start)
            _add_of_similarities(call, tile, plans, units, own_queries, own_contexts, None, 0, sums, False)


def _add_of_listed_pairs(
    call: Call, grad_scores: Tensor, tile: LongTiling, of_contexts: Tensor, of_queries: Tensor
) -> None:
    """Either side by itself: its items' pairs follow one another, so that each item's are summed at once.

    Items whose pairs lie in two chunks, or two parts of the list, are rounded in between.
    """
    assert call.pairs is not None
    most = min(most_units(tile), call.pairs.size(0))
    n_grams = max(1, min(most, 2 * GRAM_BYTES // (4 * tile.rows * tile.gram_columns)))  # those of features are not made
    units = Units(most, n_grams, tile, call.pairs.device)
    for own_contexts, own, norms, out in (
        (True, call.contexts, call.context_norms, of_contexts),
        (False, call.queries, call.query_norms, of_queries),
    ):
        if not out.numel():
            continue
        for pairs, grads in zip(call.pairs.split(SORTED_PAIRS), grad_scores.split(SORTED_PAIRS), strict=True):
            _add_of_part(call, pairs, grads, tile, units, n_grams if own_contexts else most, out, own_contexts)
        if call.options.normalize:
            finish(own, norms, None, out, out, True)


def _add_of_part(
    call: Call, pairs: Tensor, grad_scores: Tensor, tile: LongTiling, units: Units, most: int, out: Tensor,
    own_contexts: bool,
) -> None:  # fmt: skip
    """One side's gradients from a part of the list, sorted by that side's items, so many pairs at a time."""
    own = call.contexts if own_contexts else call.queries
    column = call.context_column if own_contexts else 1 - call.context_column
    items, order = pairs[:, column].sort(stable=True)
    begins = torch.searchsorted(items, torch.arange(own.n_items + 1, device=items.device))
    listed = pairs[:, 1 - column].index_select(0, order), begins
    for first in range(0, pairs.size(0), most):
        chunk = range(min(most, pairs.size(0) - first))
        launch(long_backward, (len(chunk),),
            *call.sides(), pairs, order, units.grams, grad_scores, grad_scores.stride(0), 0,
            *units.tensors, 0, 0, 1, first, tile.rows, tile.columns, tile.gram_columns, call.contexts.dim,
            *call.numbers, VECTORS=True, **long_constants(call, tile),
        )  # fmt: skip
        plans = (None, None)
        if own_contexts:
            _add_of_grams(call, tile, plans, units, range(own.n_items), chunk, listed, first, out)
        _add_of_similarities(call, tile, plans, units, range(own.n_items), chunk, listed, first, out, own_contexts)


def _add_of_grams(
    call: Call, tile: LongTiling, plans: Plans, units: Units, tiles: range, partners: range,
    listed: tuple[Tensor, Tensor] | None, first_pair: int, sums: Tensor,
) -> None:  # fmt: skip
    """What contexts get by way of their Gram matrices; of listed pairs `partners` are as many as the chunk's."""
    contexts, constants = call.contexts, long_constants(call, tile)
    plan, table = plans[0], contexts.table
    begins = units.used if listed is None else listed[1]
    tables = (table.lengths,) * 2 if plan is None else (plan.items, plan.lengths)
    blocks = -(-contexts.longest // tile.m)
    shared = {name: constants[name] for name in ("WHOLE", "ITEMS", "M", "STEP", "FINE", "num_warps", "num_stages")}
    launch(item_gram_gradients, (len(tiles), blocks, blocks),
        call.context_norms, *tables, table.first_rows, table.lengths, begins,
        units.weights, units.relevances, units.used, units.grams, tile.gram_columns, tiles.start, len(partners),
        first_pair, tile.rows, tile.columns, NORMALIZE=call.options.normalize, **shared,
    )  # fmt: skip
    launch(add_gram_products, (len(tiles), blocks, -(-contexts.dim // WIDTH)),
        contexts.features, call.context_norms, *tables, table.first_rows, table.lengths, *contexts.strides, begins,
        units.grams, sums, tile.gram_columns, tiles.start, len(partners), first_pair, tile.rows, contexts.dim,
        SLOTS=_by_slots(contexts, plan), WIDTH=WIDTH, **shared,
    )  # fmt: skip


def _add_of_similarities(
    call: Call, tile: LongTiling, plans: Plans, units: Units, tiles: range, partners: range,
    listed: tuple[Tensor, Tensor] | None, first_pair: int, sums: Tensor, own_contexts: bool,
) -> None:  # fmt: skip
    """What one side gets by way of the similarities; of listed pairs `partners` are as many as the chunk's."""
    constants = long_constants(call, tile)
    own, theirs, norms = (
        (call.contexts, call.queries, call.query_norms)
        if own_contexts
        else (call.queries, call.contexts, call.context_norms)
    )
    plan, their_plan = plans if own_contexts else plans[::-1]
    sizes, blocks, strides = (tile.rows, tile.columns), (tile.m, tile.n), (tile.columns, 1)
    unit_strides = (len(partners), 1)
    if not own_contexts:
        sizes, blocks, strides, unit_strides = sizes[::-1], blocks[::-1], strides[::-1], (1, len(tiles))
    n_blocks = -(-(own.longest if plan is None else plan.size) // blocks[0])
    # Without tensor cores a product's operands lie in registers: its steps are short.
    ieee = constants["MAIN"] == "ieee"
    step = 16 if ieee else min(blocks[1], STEP_BYTES // own.features.element_size())
    width = WIDTH // 2 if ieee else WIDTH
    launch(long_feature_gradients, (len(tiles), n_blocks, -(-own.dim // width)),
        *own.rows_arguments(plan), *theirs.rows_arguments(their_plan), norms,
        *(listed or (units.used, units.used)), units.gradients, units.factors, units.used, sums,
        tiles.start, partners.start, len(partners), first_pair, *unit_strides, *sizes, *strides, own.dim,
        OWN_CONTEXTS=own_contexts, WHOLE=constants["WHOLE"], SLOTS=_by_slots(own, plan),
        M=blocks[0], N=step, WIDTH=width, MAIN=constants["MAIN"],
        num_warps=constants["num_warps"], num_stages=constants["num_stages"],
    )  # fmt: skip


def _by_slots(own: Side, plan: TilePlan | None) -> bool:
    """Whether sums are of slots: of half-precision features that are not listed."""
    return plan is not None and own.features.dtype != torch.float32
