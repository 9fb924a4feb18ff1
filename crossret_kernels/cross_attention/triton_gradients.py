"""Backend "triton" of stacked cross attention: gradients of both sides' features, with bounded workspaces.

Everything is recomputed, and every sum is taken in the same order every time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.tiling import CONTEXT_SEGMENTS, QUERY_SEGMENTS, Tiling
from crossret_kernels.cross_attention.triton import GRAM_BYTES, Call, gram_runs
from crossret_kernels.cross_attention.triton_backward import feature_gradients, finish_rows, scan_backward
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import Side, launch, precisions

BLOCK_BYTES = 64 * 2**20  # of the similarities' gradients
SUM_BYTES = 64 * 2**20  # of half-precision features' gradients in float32
RUN_BYTES = 32 * 2**20  # of the Gram matrices' gradients, a sum for every program
SORTED_PAIRS = 2**20  # of a list at a time
PROGRAMS = 1024  # what keeps a large device busy
WIDTH = 128  # columns of features a program sums the gradients of
FINISHED_ROWS = 16  # a program


def image_and_caption_gradients(grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Gradients of regions and words; of a side that needs none an empty tensor."""
    call = Call.of(*arguments[:-2])
    needed = arguments[-2:]
    sides = (call.contexts, call.queries) if call.context_column == 0 else (call.queries, call.contexts)
    of_images, of_captions = (
        torch.zeros(side.features.shape if wanted else (0,), dtype=side.features.dtype, device=side.features.device)
        for side, wanted in zip(sides, needed, strict=True)
    )
    if grad_scores.numel():
        outs = (of_images, of_captions) if call.context_column == 0 else (of_captions, of_images)
        add_gradients = _add_of_all_pairs if call.pairs is None else _add_of_listed_pairs
        add_gradients(call, grad_scores, *outs)
    return of_images, of_captions


class Blocks:
    """What `scan_backward` leaves for `feature_gradients`: as many blocks and programs at a time as memory is for."""

    def __init__(self, n_blocks: int, n_programs: int, tile: Tiling, features: Tensor) -> None:
        device = features.device
        # Of similarities. float16 has too little room for them.
        dtype = torch.bfloat16 if features.dtype == torch.bfloat16 else torch.float32
        self.similarities = torch.empty(n_blocks, tile.m, tile.n, dtype=dtype, device=device)
        self.grams = torch.empty(n_programs, tile.m, tile.m, dtype=torch.float32, device=device)
        self.factors = torch.empty(n_blocks, tile.n, dtype=torch.float32, device=device)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.similarities, self.grams, self.factors


class Sums:
    """One side's gradients as they are summed: where they belong if in float32, else by slots of a run of tiles."""

    def __init__(self, side: Side, plan: TilePlan, norms: Tensor, out: Tensor, normalize: bool) -> None:
        self.side, self.plan, self.norms, self.out, self.normalize = side, plan, norms, out, normalize
        self.buffered = out.numel() > 0 and out.dtype != torch.float32
        self.most = plan.tiles
        self.sums = out
        self.started = 0
        if self.buffered:
            self.most = min(plan.tiles, max(1, SUM_BYTES // (4 * side.dim * plan.size)))
            self.sums = torch.empty(self.most * plan.size, side.dim, dtype=torch.float32, device=out.device)

    @property
    def whole(self) -> range:
        return range(self.plan.tiles)

    def runs(self) -> list[range]:
        """All tiles in runs that the sums have room for."""
        return [self.whole[first : first + self.most] for first in range(0, self.plan.tiles, self.most)]

    def begin(self, run: range) -> None:
        self.started = run.start
        if self.buffered:
            self.sums.zero_()

    def of(self, tile: int) -> Tensor:
        """The sums from those of this tile on; all of them where they are not by slots."""
        return self.sums[(tile - self.started) * self.plan.size :] if self.buffered else self.sums

    def finish(self, run: range) -> None:
        """Rounds what is summed up of a run into its rows, through x / ‖x‖ where features were normalised."""
        tables = (self.plan.rows[run.start : run.stop], self.plan.owners[run.start : run.stop])
        if self.buffered:
            finish(self.side, self.norms, tables, self.sums, self.out, self.normalize)
        elif self.normalize and self.out.numel():
            finish(self.side, self.norms, None, self.out, self.out, True)


def finish(
    side: Side, norms: Tensor, tables: tuple[Tensor, Tensor] | None, sums: Tensor, out: Tensor, normalize: bool
) -> None:
    """Sums by slots of these tables, or by rows, as gradients."""
    n = side.n_rows if tables is None else tables[0].numel()
    launch(finish_rows, (-(-n // FINISHED_ROWS),),
        side.features, norms, *side.strides, *(tables or (norms, norms)), sums, out, n, side.dim,
        NORMALIZE=normalize, SLOTS=tables is not None, ROWS=FINISHED_ROWS, K=256,
    )  # fmt: skip


def _add_of_all_pairs(call: Call, grad_scores: Tensor, of_contexts: Tensor, of_queries: Tensor) -> None:
    """Both sides together where their sums fit into the memory for them, else one after the other."""
    dtype, dim = call.contexts.features.dtype, call.contexts.dim
    tile = call.tiling("backward")
    plans = call.contexts.tiles(tile.m, CONTEXT_SEGMENTS), call.queries.tiles(tile.n, QUERY_SEGMENTS)
    slots = sum(plan.rows.numel() for plan in plans)
    if dtype == torch.float32 or 4 * dim * slots <= SUM_BYTES:
        _add_of_tiles(call, grad_scores, tile, plans, of_contexts, of_queries)
        return
    nothing = of_contexts.new_empty(0)
    if of_contexts.numel():
        _add_of_tiles(call, grad_scores, tile, plans, of_contexts, nothing)
    if of_queries.numel():
        _add_of_tiles(call, grad_scores, tile, plans, nothing, of_queries)


def _add_of_tiles(
    call: Call,
    grad_scores: Tensor,
    tile: Tiling,
    plans: tuple[TilePlan, TilePlan],
    of_contexts: Tensor,
    of_queries: Tensor,
) -> None:
    """Rectangle by rectangle of tiles, as large as the memory of their blocks allows."""
    normalize = call.options.normalize
    contexts = Sums(call.contexts, plans[0], call.context_norms, of_contexts, normalize)
    queries = Sums(call.queries, plans[1], call.query_norms, of_queries, normalize)
    kept = torch.bfloat16 if call.contexts.features.dtype == torch.bfloat16 else torch.float32
    n_blocks = max(1, BLOCK_BYTES // (kept.itemsize * tile.m * tile.n))
    n_grams = max(1, GRAM_BYTES // (4 * tile.m**2))
    height = max(1, min(contexts.most, n_grams, max(int(n_blocks**0.5), n_blocks // queries.most)))
    width = max(1, min(queries.most, n_blocks // height))
    # A program's Gram gradients are summed over its run of tiles: as long a run as keeps the device busy.
    programs = min(PROGRAMS, max(height, RUN_BYTES // (4 * tile.m**2)))
    each = min(width, -(-width * height // programs))
    blocks = Blocks(height * width, height * -(-width // each), tile, call.contexts.features)
    constants = call.constants(tile)
    score_strides = (grad_scores.stride(call.context_column), grad_scores.stride(1 - call.context_column))

    # Sums of one side alone may come in runs; the other's, if any, are all kept.
    outer, inner = (queries, contexts) if queries.most < plans[1].tiles else (contexts, queries)
    inner.begin(inner.whole)
    for run in outer.runs():
        outer.begin(run)
        context_run, query_run = (run, queries.whole) if outer is contexts else (contexts.whole, run)
        for own_contexts, grams in gram_runs(call, plans[0], tile, context_run, height):
            for start in range(query_run.start, query_run.stop, width):
                own_queries = range(start, min(start + width, query_run.stop))
                runs = -(-len(own_queries) // each)
                launch(scan_backward, (len(own_contexts) * runs,),
                    *call.sides(*plans), grad_scores, grad_scores, grams, grad_scores, *score_strides,
                    *blocks.tensors, own_contexts.start, own_queries.start, len(own_queries), each, 0,
                    call.contexts.dim, *call.numbers, **constants,
                )  # fmt: skip
                for own, tiles, partners, their_tiles in (
                    (contexts, own_contexts, queries, own_queries),
                    (queries, own_queries, contexts, own_contexts),
                ):
                    if own.out.numel():
                        _launch(
                            own.side, own.plan, partners.side, partners.plan, partners.norms, grad_scores,
                            grad_scores, blocks,
                            own.of(tiles.start), tiles, their_tiles, runs, 0, own is contexts, own.buffered,
                        )  # fmt: skip
        outer.finish(run)
    inner.finish(inner.whole)


def _add_of_listed_pairs(call: Call, grad_scores: Tensor, of_contexts: Tensor, of_queries: Tensor) -> None:
    """Either side by itself: its items' pairs follow one another, so that each item's are summed at once.

    Items whose pairs lie in two chunks, or two parts of the list, are rounded in between.
    """
    assert call.pairs is not None
    tile = call.tiling("backward")
    most = max(1, min(BLOCK_BYTES // (4 * tile.m * tile.n), RUN_BYTES // (4 * tile.m**2), call.pairs.size(0)))
    blocks = Blocks(most, most, tile, call.contexts.features)
    for own_contexts, own, norms, out in (
        (True, call.contexts, call.context_norms, of_contexts),
        (False, call.queries, call.query_norms, of_queries),
    ):
        if not out.numel():
            continue
        for pairs, grads in zip(call.pairs.split(SORTED_PAIRS), grad_scores.split(SORTED_PAIRS), strict=True):
            _add_of_part(call, pairs, grads, tile, blocks, out, own_contexts)
        if call.options.normalize:
            finish(own, norms, None, out, out, True)


def _add_of_part(
    call: Call, pairs: Tensor, grad_scores: Tensor, tile: Tiling, blocks: Blocks, out: Tensor, own_contexts: bool
) -> None:
    """One side's gradients from a part of the list, sorted by that side's items."""
    sides = (call.contexts, call.context_norms), (call.queries, call.query_norms)
    (own, _), (partners, partner_norms) = sides if own_contexts else sides[::-1]
    column = call.context_column if own_contexts else 1 - call.context_column
    items, order = pairs[:, column].sort(stable=True)
    begins = torch.searchsorted(items, torch.arange(own.n_items + 1, device=items.device))
    partner_items = pairs[:, 1 - column].index_select(0, order)
    most = blocks.similarities.size(0)
    for first in range(0, pairs.size(0), most):
        chunk = range(min(most, pairs.size(0) - first))
        launch(scan_backward, (len(chunk),),
            *call.sides(), pairs, order, grad_scores, grad_scores, grad_scores.stride(0), 0, *blocks.tensors,
            0, 0, 1, 1, first, call.contexts.dim, *call.numbers, **call.constants(tile),
        )  # fmt: skip
        _launch(
            own, None, partners, None, partner_norms, partner_items, begins, blocks, out, range(own.n_items), chunk,
            1, first, own_contexts, False,
        )  # fmt: skip


def _launch(
    own: Side, own_plan: TilePlan | None, partners: Side, partner_plan: TilePlan | None, partner_norms: Tensor,
    partner_items: Tensor, begins: Tensor, blocks: Blocks, sums: Tensor, tiles: range, their_tiles: range, runs: int,
    first_pair: int, own_contexts: bool, by_slots: bool,
) -> None:  # fmt: skip
    """`feature_gradients` of these tiles from the blocks; of listed pairs `their_tiles` are as many as the chunk's."""
    _, m, n = blocks.similarities.shape
    main, fine = precisions(own.features.dtype)
    width = WIDTH // 2 if main == "ieee" else WIDTH  # products of float32 in parts keep twice as much on the chip
    launch(feature_gradients, (len(tiles), -(-own.dim // width)),
        *own.rows_arguments(own_plan), *partners.rows_arguments(partner_plan), partner_norms,
        partner_items, begins, *blocks.tensors, sums, tiles.start, len(tiles), their_tiles.start, len(their_tiles),
        runs, first_pair, own.dim,
        OWN_CONTEXTS=own_contexts, WHOLE=own_plan is None, SLOTS=by_slots,
        M=m if own_contexts else n, N=n if own_contexts else m, WIDTH=width, MAIN=main, FINE=fine,
        num_warps=8 if m * WIDTH >= 128 * 64 else 4, num_stages=3,
    )  # fmt: skip
