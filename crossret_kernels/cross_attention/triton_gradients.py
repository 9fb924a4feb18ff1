"""Backend "triton" of stacked cross attention: gradients of both sides' features, with bounded workspaces.

Everything is recomputed, and every sum is taken in the same order every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.tiling import CONTEXT_SEGMENTS, QUERY_SEGMENTS, Tiling, too_long
from crossret_kernels.cross_attention.triton import GRAM_BYTES, Call, gram_runs
from crossret_kernels.cross_attention.triton_backward import (
    feature_gradients,
    filled_blocks,
    finish_rows,
    gram_gradients,
    scan_backward,
)
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import Side, launch, precisions

BLOCK_BYTES = 96 * 2**20  # of the tiles' gradients and weights
SUM_BYTES = 64 * 2**20  # of half-precision features' gradients in float32
GRAM_GRADIENT_BYTES = 16 * 2**20
LISTED = 128  # blocks that are looked at together
SORTED_PAIRS = 2**20  # of a list at a time
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
        if too_long(call.contexts.ragged, call.queries.ragged):
            from crossret_kernels.cross_attention.triton_long_gradients import add_gradients
        else:
            add_gradients = _add_of_all_pairs if call.pairs is None else _add_of_listed_pairs
        add_gradients(call, grad_scores, *outs)
    return of_images, of_captions


class Blocks:
    """What `scan_backward` leaves for both sides' `feature_gradients`."""

    def __init__(self, n_blocks: int, tile: Tiling, features: Tensor) -> None:
        device, dtype = features.device, kept_dtype(features)
        self.similarities, self.weights, self.scaled_weights = (
            torch.empty(n_blocks, tile.m, tile.n, dtype=dtype, device=device) for _ in range(3)
        )
        self.factors = torch.empty(n_blocks, tile.n, dtype=torch.float32, device=device)
        self.filled, self._listed, self._counts = (
            torch.empty(n_blocks, dtype=torch.int32, device=device) for _ in range(3)
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.similarities, self.weights, self.scaled_weights, self.factors

    def listed(self, n_context_tiles: int, n_query_tiles: int, by_contexts: bool) -> tuple[Tensor, Tensor]:
        """Of every tile of one side its filled blocks, and how many; until the other side's are asked for."""
        n_tiles, n_partners = (n_context_tiles, n_query_tiles) if by_contexts else (n_query_tiles, n_context_tiles)
        launch(filled_blocks, (n_tiles,),
            self.filled, self._listed, self._counts, n_partners, n_query_tiles if by_contexts else 1,
            1 if by_contexts else n_query_tiles, SIZE=LISTED,
        )  # fmt: skip
        return self._listed, self._counts


def kept_dtype(features: Tensor) -> torch.dtype:
    """Of blocks; float16 has too little room for gradients."""
    return torch.bfloat16 if features.dtype == torch.bfloat16 else torch.float32


def most_blocks(tile: Tiling, features: Tensor) -> int:
    """As many as memory is for, at least one."""
    return max(1, BLOCK_BYTES // (3 * kept_dtype(features).itemsize * tile.m * tile.n))


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
    tile = call.tiling("backward")
    plans = call.contexts.tiles(tile.m, CONTEXT_SEGMENTS), call.queries.tiles(tile.n, QUERY_SEGMENTS)
    for outs in together_or_apart(plans, of_contexts, of_queries):
        _add_of_tiles(call, grad_scores, tile, plans, *outs)


def together_or_apart(
    plans: tuple[TilePlan, TilePlan], of_contexts: Tensor, of_queries: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Both sides' gradients at once where their sums fit into the memory for them, else one side after the other."""
    slots = sum(plan.rows.numel() for plan in plans)
    dim = max(of_contexts.size(-1), of_queries.size(-1))  # a side that needs none has an empty tensor
    if of_contexts.dtype == torch.float32 or 4 * dim * slots <= SUM_BYTES:
        return [(of_contexts, of_queries)]
    nothing = of_contexts.new_empty(0)
    return [outs for outs in ((of_contexts, nothing), (nothing, of_queries)) if any(out.numel() for out in outs)]


def rectangle_size(contexts: Sums, queries: Sums, most: int, most_grams: int) -> tuple[int, int]:
    """Tiles of contexts and of queries in a rectangle of at most so many blocks and Gram matrices; at least one."""
    height = max(1, min(contexts.most, most_grams, max(int(most**0.5), most // queries.most)))
    return height, max(1, min(queries.most, most // height))


def rectangles(
    contexts: Sums, queries: Sums, width: int, gram_runs_of: Callable[[range], Iterator[tuple[range, Tensor]]]
) -> Iterator[tuple[range, range, Tensor]]:
    """(tiles of contexts, tiles of queries, the contexts' Gram matrices) of all rectangles; begins and ends the sums.

    Sums of one side alone may come in runs; the other's, if any, are all kept.
    """
    outer, inner = (queries, contexts) if queries.most < queries.plan.tiles else (contexts, queries)
    inner.begin(inner.whole)
    for run in outer.runs():
        outer.begin(run)
        context_run, query_run = (run, queries.whole) if outer is contexts else (contexts.whole, run)
        for own_contexts, grams in gram_runs_of(context_run):
            for start in range(query_run.start, query_run.stop, width):
                yield own_contexts, range(start, min(start + width, query_run.stop)), grams
        outer.finish(run)
    inner.finish(inner.whole)


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
    features = call.contexts.features
    n_grams = min(GRAM_BYTES, GRAM_GRADIENT_BYTES) // (4 * tile.m**2)
    height, width = rectangle_size(contexts, queries, most_blocks(tile, features), n_grams)
    blocks = Blocks(height * width, tile, features)
    of_grams = torch.empty(height, tile.m, tile.m, dtype=torch.float32, device=features.device)
    constants = call.constants(tile)
    score_strides = (grad_scores.stride(call.context_column), grad_scores.stride(1 - call.context_column))

    for own_contexts, own_queries, grams in rectangles(
        contexts, queries, width, lambda run: gram_runs(call, plans[0], tile, run, height)
    ):
        launch(scan_backward, (len(own_contexts) * len(own_queries),),
            *call.sides(*plans), grad_scores, grad_scores, grams, grad_scores, *score_strides,
            *blocks.tensors, blocks.filled, own_contexts.start, own_queries.start, len(own_contexts),
            len(own_queries), 0, call.contexts.dim, *call.numbers, **constants,
        )  # fmt: skip
        for own, tiles, partners, their_tiles in (
            (contexts, own_contexts, queries, own_queries),
            (queries, own_queries, contexts, own_contexts),
        ):
            if own.out.numel():
                listed = blocks.listed(len(own_contexts), len(own_queries), by_contexts=own is contexts)
                if own is contexts:
                    launch(gram_gradients, (len(tiles),),
                        blocks.weights, blocks.scaled_weights, *listed, own.plan.owners, of_grams,
                        tiles.start, len(their_tiles), M=tile.m, N=tile.n, FINE=constants["FINE"],
                        num_warps=tile.warps, num_stages=3,
                    )  # fmt: skip
                _launch(
                    own.side, own.plan, partners.side, partners.plan, partners.norms, None, listed, blocks,
                    of_grams, own.of(tiles.start), tiles, their_tiles, 0, own is contexts, own.buffered,
                )  # fmt: skip


def _add_of_listed_pairs(call: Call, grad_scores: Tensor, of_contexts: Tensor, of_queries: Tensor) -> None:
    """Either side by itself: its items' pairs follow one another, so that each item's are summed at once.

    Items whose pairs lie in two chunks, or two parts of the list, are rounded in between.
    """
    assert call.pairs is not None
    tile = call.tiling("backward")
    features = call.contexts.features
    blocks = Blocks(min(most_blocks(tile, features), call.pairs.size(0)), tile, features)
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
            blocks.filled, 0, 0, 1, 1, first, call.contexts.dim, *call.numbers, **call.constants(tile),
        )  # fmt: skip
        _launch(
            own, None, partners, None, partner_norms, (partner_items, begins), None, blocks, out, out,
            range(own.n_items), chunk, first, own_contexts, False,
        )  # fmt: skip


def _launch(
    own: Side, own_plan: TilePlan | None, partners: Side, partner_plan: TilePlan | None, partner_norms: Tensor,
    pairs: tuple[Tensor, Tensor] | None, listed: tuple[Tensor, Tensor] | None, blocks: Blocks, of_grams: Tensor,
    sums: Tensor, tiles: range, their_tiles: range, first_pair: int, own_contexts: bool, by_slots: bool,
) -> None:  # fmt: skip
    """`feature_gradients` of these tiles from the blocks; of listed pairs `their_tiles` are as many as the chunk's."""
    _, m, n = blocks.similarities.shape
    main, fine = precisions(own.features.dtype)
    width = WIDTH // 2 if main == "ieee" else WIDTH  # products of float32 in parts keep twice as much on the chip
    unused = (blocks.filled, blocks.filled)
    launch(feature_gradients, (len(tiles), -(-own.dim // width)),
        *own.rows_arguments(own_plan), *partners.rows_arguments(partner_plan), partner_norms, *(pairs or unused),
        blocks.filled, *(listed or unused), *blocks.tensors, of_grams, sums, tiles.start, len(tiles),
        their_tiles.start, len(their_tiles), first_pair, own.dim,
        OWN_CONTEXTS=own_contexts, WHOLE=own_plan is None, SLOTS=by_slots,
        M=m if own_contexts else n, N=n if own_contexts else m, WIDTH=width, MAIN=main, FINE=fine,
        num_warps=8 if m * WIDTH >= 128 * 64 else 4, num_stages=3,
    )  # fmt: skip
