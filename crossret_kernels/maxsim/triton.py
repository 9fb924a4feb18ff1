"""Backend "triton" of Sum-Max: launches of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from crossret_kernels.kept_plans import kept_plan_of_side
from crossret_kernels.maxsim.item_groups import ItemGroups, groups_of
from crossret_kernels.maxsim.sides import Side, launch, precisions, slots_for
from crossret_kernels.maxsim.triton_kernels import best_of_items, best_of_tiles
from crossret_kernels.tile_plan import fill_of, lengths_of

LARGEST_TILE = 128  # queries; items of more pass through it in pieces
LARGER_TILE = 256  # where scores take little but products, and the largest are less than WELL_FILLED as full
WELL_FILLED = 0.95
CELLS = 128 * 256  # of a tile, at most: what they take of registers is half of all
COLUMNS = 64  # of a tile of best contexts, beside the tile of similarities
LARGEST_RESIDENT = 128  # D of queries that stay in a tile at full length
PROGRAMS = 4096  # wanted of a launch, so that every processor of a device has some, and the same share of them

Of = TypeVar("Of")


@dataclass(frozen=True)
class Tiling:
    """A kernel's tile: M queries by N contexts in C columns, D in steps of K; how Triton runs it."""

    m: int
    n: int
    columns: int
    k: int
    resident: bool
    warps: int
    stages: int


@dataclass(frozen=True)
class Call:
    """One call, its sides as contexts and queries.

    Attributes:
        contexts, queries: the side whose best are taken, and the one that takes them.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        context_column: of the contexts' items in pairs.
        pooling: of the scores; "none" where every query's best is asked for.
        normalize: whether similarities are cosines.
    """

    contexts: Side
    queries: Side
    pairs: Tensor | None
    context_column: int
    pooling: str
    normalize: bool

    @classmethod
    def of(cls, arguments: tuple[Any, ...], direction: str, pooling: str, normalize: bool) -> Call:
        """From the tensors that the operations take first."""
        images, captions, pairs = Side.of(*arguments[:3]), Side.of(*arguments[3:6]), arguments[6]
        sides = (images, captions) if direction == "t2i" else (captions, images)
        return cls(*sides, None if pairs is None else pairs.contiguous(), int(direction == "i2t"), pooling, normalize)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the scores."""
        if self.pairs is not None:
            return (len(self.pairs),)
        return self.in_order(self.contexts.n_items, self.queries.n_items)

    def in_order(self, of_contexts: Of, of_queries: Of) -> tuple[Of, Of]:
        """What there is of either side as (image's, caption's)."""
        return (of_contexts, of_queries) if self.context_column == 0 else (of_queries, of_contexts)

    @property
    def by_items(self) -> bool:
        """Whether each item of queries has tiles of its own."""
        return self.pairs is not None or self.queries.table.longest > LARGEST_TILE

    def tiling(self, index: bool) -> Tiling:
        """The tile for scores or, with `index`, for places: what a thread keeps besides the product is to fit it."""
        dtype, dim = self.contexts.features.dtype, self.contexts.dim
        wide, precision = dtype == torch.float32, precisions(dtype)[0]
        # Without tensor cores a product's operands lie in registers: steps of D are short, fewer columns kept.
        # Fewer are kept where long items have places too. Scales, masks and places leave the largest tile no room.
        in_registers = precision == "ieee"
        resident = dim <= LARGEST_RESIDENT and not in_registers
        k = slots_for(dim, 16) if resident else 16 if in_registers else 32 if wide else 64
        small = resident or in_registers
        plain = dim % k == 0 and not (small or index or self.normalize)
        m = self._queries_of_tile(plain)
        n = 64 if small or self.pairs is not None else min(CELLS // m, 256)
        columns = COLUMNS // 2 if in_registers or (index and self.by_items and not resident) else COLUMNS
        return Tiling(m, n, min(n, columns), k, resident, 8 if m >= 128 else 4, 2 if wide and resident else 3)

    def _queries_of_tile(self, larger: bool) -> int:
        longest, n_rows = self.queries.table.longest, self.queries.n_rows
        usual = min(slots_for(longest if self.by_items else max(longest, n_rows), 16), LARGEST_TILE)
        if self.by_items or not larger or n_rows <= LARGEST_TILE:
            return usual
        return kept_plan_of_side(int, (usual, LARGER_TILE), self.queries.ragged, self._better_filled)

    def _better_filled(self) -> int:
        lengths = lengths_of(self.queries.ragged)
        fills = [fill_of(lengths, size, size) for size in (LARGEST_TILE, LARGER_TILE)]
        return LARGER_TILE if fills[0] < WELL_FILLED * fills[1] else LARGEST_TILE

    def groups(self, tile: Tiling, window: int, n_tiles: int) -> ItemGroups:
        """The contexts', of so many items at a time; listed pairs have one each."""
        if self.pairs is not None:
            window = n_tiles = 1
        return groups_of(self.contexts.ragged, tile.columns, tile.n // tile.columns, window, n_tiles)

    def scales(self) -> tuple[Tensor, Tensor]:
        """1 / ‖x‖ of contexts and of queries; anything where similarities are no cosines."""
        if not self.normalize:
            return self.contexts.table.lengths, self.queries.table.lengths
        return self.contexts.norms(inverted=True), self.queries.norms(inverted=True)


@dataclass(frozen=True)
class Places:
    """Where kernels store the best context of every query.

    Attributes:
        indices: they, of any integer dtype.
        values: their similarities, float32; None where they are not wanted.
        context_stride: from one item of contexts, or one listed pair, to the next.
        firsts: (items of queries,): where an item's begin, counted from there.
    """

    indices: Tensor
    values: Tensor | None
    context_stride: int
    firsts: Tensor


def scores(*arguments: Any) -> Tensor:
    """`crossret::maxsim_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = Call.of(arguments, *arguments[7:10])
    out = torch.empty(call.shape, dtype=torch.float32, device=call.contexts.features.device)
    if out.numel():
        find(call, call.scales(), out, None, 0, call.contexts.n_items)
    return out


def indices(*arguments: Any) -> Tensor:
    """`crossret::maxsim_argmax_triton`: the best contexts (n_images, n_captions, Q), or (P, Q) of pairs, int64."""
    direction, normalize, width = arguments[7:10]
    call = Call.of(arguments, direction, "none", normalize)
    width = call.queries.table.longest if width is None else width
    device = call.contexts.features.device
    out = torch.full((*call.shape, width), -1, dtype=torch.int64, device=device)
    if out.numel():
        context_stride, query_stride = width, 0
        if call.pairs is None:
            context_stride, query_stride = call.in_order(out.stride(0), out.stride(1))
        firsts = torch.arange(call.queries.n_items, device=device) * query_stride
        find(call, call.scales(), None, Places(out, None, context_stride, firsts), 0, call.contexts.n_items)
    return out


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::maxsim_scores_triton_backward`: gradients of regions and words, of scores' in the first argument."""
    from crossret_kernels.maxsim.triton_gradients import image_and_caption_gradients

    return image_and_caption_gradients(*arguments)


def find(
    call: Call, scales: tuple[Tensor, Tensor], out: Tensor | None, places: Places | None, first: int, window: int
) -> None:
    """Stores all scores, or the best contexts in a window of items from the first; of a listed call's pairs, all."""
    contexts, queries, tile = call.contexts, call.queries, call.tiling(places is not None)
    plan = None if call.by_items else queries.tiles(tile.m, tile.m)
    n_tiles = queries.n_items if plan is None else plan.tiles
    groups = call.groups(tile, window, n_tiles)
    unused = queries.table.lengths
    stored = (unused, unused, 0, unused)
    if places is not None:
        values = unused if places.values is None else places.values
        stored = (places.indices, values, places.context_stride, places.firsts)
    strides = (0, 0) if out is None or out.dim() == 1 else call.in_order(out.stride(0), out.stride(1))
    constants = {
        "INDEX": places is not None,
        "VALUES": places is not None and places.values is not None,
        "POOLING": call.pooling,
        "NORMALIZE": call.normalize,
        "M": tile.m,
        "N": tile.n,
        "COLUMNS": tile.columns,
        "K": tile.k,
        "RESIDENT": tile.resident,
        "EVEN": contexts.dim % tile.k == 0,
        "PRECISION": precisions(contexts.features.dtype)[0],
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    sums = (unused if out is None else out, *strides)
    of_contexts = (contexts.features, scales[0], groups.slots, *contexts.strides)
    n_groups = -(-min(window, contexts.n_items - first) >> groups.bits)
    first_group = first // window * groups.groups
    n_runs, run_groups = runs(n_groups, n_tiles)
    if plan is None:
        n_programs = n_runs * n_tiles if call.pairs is None else len(call.pairs)
        launch(best_of_items, (n_programs,),
            queries.features, scales[1], queries.table.first_rows, queries.table.lengths, *queries.strides,
            *of_contexts, unused if call.pairs is None else call.pairs, *sums, *stored,
            first, first_group, n_groups, run_groups, groups.bits, n_tiles, contexts.dim,
            LISTED=call.pairs is not None, CONTEXT_COLUMN=call.context_column, **constants,
        )  # fmt: skip
        return
    launch(best_of_tiles, (n_runs * n_tiles,),
        queries.features, scales[1], plan.rows, plan.owners, plan.items, plan.lengths, queries.table.first_rows,
        *queries.strides, *of_contexts, *sums, *stored,
        first, first_group, n_groups, run_groups, groups.bits, n_tiles, n_runs, contexts.dim,
        **constants, SEGMENTS=plan.segments,
    )  # fmt: skip


def runs(n_groups: int, n_tiles: int) -> tuple[int, int]:
    """(How many runs, the groups of each) to share groups of contexts out into, for each of the tiles."""
    run_groups = -(-n_groups // max(1, min(n_groups, -(-PROGRAMS // n_tiles))))
    return -(-n_groups // run_groups), run_groups
