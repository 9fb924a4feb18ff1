"""Scores of backend "triton" of stacked cross attention where items are too long for a tile on the chip.

Their tiles are in memory, which a few programs take in turns: it grows with the longest items, not with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.long_tiling import STEP, WIDTH, LongTiling, long_tiling
from crossret_kernels.cross_attention.triton import Call
from crossret_kernels.cross_attention.triton_long_kernels import item_gram_matrices, long_forward
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import launch, precisions

CELL_BYTES = 160 * 2**20  # of all programs' cells, statistics and relevances
MOST_ROWS, MOST_COLUMNS = 640, 256  # of tiles of several items
GRAM_BYTES = 48 * 2**20
PROGRAMS_A_CORE = 2  # one multiplies while the other does not


def store_scores(call: Call, out: Tensor) -> None:
    """Of all pairs, or of listed ones."""
    contexts, queries = call.contexts, call.queries
    tile = long_tiling(contexts.ragged, queries.ragged, call.pairs is not None, MOST_ROWS, MOST_COLUMNS)
    if call.pairs is not None:
        _launch(call, tile, (None, None), range(0), None, out, (0, 0), out.numel())
        return
    plans = contexts.tiles(tile.rows, tile.items), queries.tiles(tile.columns, tile.items)
    tiles = range(plans[0].tiles)
    # Of more contexts than D, attended vectors cost less than products with their Gram matrix.
    gram_bytes = 4 * tile.rows * tile.gram_columns
    runs: Iterable[tuple[range, Tensor | None]] = [(tiles, None)]
    if contexts.longest <= contexts.dim and gram_bytes <= GRAM_BYTES:
        runs = gram_runs(call, plans[0], tile, tiles, GRAM_BYTES // gram_bytes)
    for run, grams in runs:
        _launch(call, tile, plans, run, grams, out, call.score_strides, len(run) * plans[1].tiles)


def _launch(
    call: Call, tile: LongTiling, plans: tuple[TilePlan, TilePlan] | tuple[None, None], tiles: range,
    grams: Tensor | None, out: Tensor, strides: tuple[int, int], n_units: int,
) -> None:  # fmt: skip
    programs = min(n_units, most_programs(tile), PROGRAMS_A_CORE * _cores(out.device))
    cells, statistics, relevances = (
        torch.empty(programs, size, dtype=torch.float32, device=out.device) for size in program_sizes(tile)
    )
    pairs = out if call.pairs is None else call.pairs
    launch(long_forward, (programs,),
        *call.sides(*plans), pairs, cells if grams is None else grams, out, *strides, cells, statistics, relevances,
        tiles.start, len(tiles), 0 if plans[1] is None else plans[1].tiles, n_units,
        tile.rows, tile.columns, tile.gram_columns, call.contexts.dim, *call.numbers,
        VECTORS=grams is None, **long_constants(call, tile),
    )  # fmt: skip


def program_sizes(tile: LongTiling) -> tuple[int, int, int]:
    """Floats of a program's cells, statistics and relevances."""
    return tile.cells, 2 * tile.items * tile.rows, tile.items * tile.columns


def most_programs(tile: LongTiling) -> int:
    return max(1, CELL_BYTES // (4 * sum(program_sizes(tile))))


def long_constants(call: Call, tile: LongTiling) -> dict[str, Any]:
    """What the kernels over units are compiled for."""
    main, fine = precisions(call.contexts.features.dtype)
    longest = max(call.contexts.longest, call.queries.longest)
    return {
        **call.modes,
        "ITEMS": tile.items,
        "M": tile.m,
        "N": tile.n,
        "K": tile.k,
        "STEP": min(STEP, max(16, 1 << (longest - 1).bit_length())),
        "WIDTH": WIDTH,
        "EVEN": call.contexts.dim % tile.k == 0,
        "MAIN": main,
        "FINE": fine,
        **tile.launch,
    }


def gram_runs(call: Call, plan: TilePlan, tile: LongTiling, tiles: range, most: int) -> Iterator[tuple[range, Tensor]]:
    """These tiles of contexts in runs of at most so many, with the Gram matrices of their items by slots."""
    contexts = call.contexts
    most = min(len(tiles), max(1, most))
    grams = torch.empty(most, tile.rows, tile.gram_columns, dtype=torch.float32, device=plan.rows.device)
    for first in range(0, len(tiles), most):
        run = tiles[first : first + most]
        launch(item_gram_matrices, (len(run), -(-contexts.longest // tile.m)),
            contexts.features, call.context_norms, plan.items, plan.lengths, contexts.table.first_rows,
            contexts.table.lengths, *contexts.strides, grams, tile.gram_columns, run.start, tile.rows, contexts.dim,
            NORMALIZE=call.options.normalize, ITEMS=tile.items, M=tile.m, K=tile.k, EVEN=contexts.dim % tile.k == 0,
            MAIN=precisions(contexts.features.dtype)[0], **tile.launch,
        )  # fmt: skip
        yield run, grams


@lru_cache
def _cores(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
