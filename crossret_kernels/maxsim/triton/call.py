"""One call of Sum-Max in Triton: its sides and options, and how it is cut up into tiles, groups and parts.

Small calls are cut up by their shapes alone, and kernels read lengths where they lie on the device: nothing is planned,
copied or waited for. Larger ones have tables made of their lengths, in one copy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.gpu.planning import on_device
from crossret_kernels.gpu.sides import RowLayout, Side, both_sides, precisions
from crossret_kernels.gpu.triton_launch import encoded_sizes, launch
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.triton.rows import NormKind, inverse_norms
from crossret_kernels.maxsim.triton.tables import best_group_bits, groups_of, tiles_of

Value = TypeVar("Value")


class KernelSide(NamedTuple):
    """A side as kernels read it.

    Attributes:
        features: as the caller has them; of a mask those that it keeps ahead of others.
        scales: (rows,) float32, 1 / ‖x‖ where similarities are cosines; else anything.
        extents: as `Side` has them; anything where all items have all rows.
    """

    features: Tensor
    scales: Tensor
    extents: Tensor


class SideSizes(NamedTuple):
    """Where a side's rows lie, numbered through all items' as features hold them, padding included.

    Attributes:
        slots: rows from item to item; 0 where packed.
        most: rows that an item has at most.
        n_rows: of all items.
        item, row: strides, the former 0 where packed.
        has_lengths: 1 where extents have lengths, else 0.
    """

    slots: int
    most: int
    n_rows: int
    item: int
    row: int
    has_lengths: int

    @classmethod
    def of(cls, side: Side, rows: RowLayout, unit: int) -> SideSizes:
        """With strides counted in so many elements."""
        most, has_lengths, count = side.slots, int(side.extents is not None), side.features.size(0)
        slots, n_rows = (0, count) if side.packed else (most, count * most)
        return cls(slots, most, n_rows, rows.item_stride // unit, rows.row_stride // unit, has_lengths)


class Tables(NamedTuple):
    """Tables made of lengths, int32; unused where shapes are enough.

    Attributes:
        groups: of contexts, as `tables.groups_of` makes them, window by window.
        places, owners, items: tiles of queries, as `tables.tiles_of` makes them.
        starts, holders: queries without padding, numbered through: of items the first's number, of numbers the item.
    """

    groups: Tensor
    places: Tensor
    owners: Tensor
    items: Tensor
    starts: Tensor
    holders: Tensor


class SearchKind(NamedTuple):
    """Specialisation of the kernels that look for the best contexts.

    Attributes:
        INDEX, VALUES: whether places are stored, and similarities beside them.
        LISTED: whether pairs are.
        CONTEXT_COLUMN: of the contexts' items in pairs.
        POOLING: of scores; "none" where every query's best is asked for.
        SOFT: whether maxima are soft.
        M, N, COLUMNS, K: a tile of M queries by N contexts in so many columns, D in steps of K.
        RESIDENT: whether queries stay in it at full length.
        UNIT: elements that strides count in.
    """

    INDEX: bool
    VALUES: bool
    LISTED: bool
    CONTEXT_COLUMN: int
    POOLING: str
    NORMALIZE: bool
    SOFT: bool
    M: int
    N: int
    COLUMNS: int
    K: int
    RESIDENT: bool
    D: int
    UNIT: int
    PRECISION: str
    STAGES: int

    @property
    def warps(self) -> int:
        return 8 if self.M >= 128 else 4


class MaxSimPlan(NamedTuple):
    """MaxSimPlan of a call: its tables and sizes.

    Attributes:
        kind: what its kernels are compiled for.
        tables: of its lengths.
        planned: whether they are there.
        bits: log₂ of the items of a group of contexts.
        n_tiles: of queries.
        tile_items: successive items of queries in a tile; 0 where tables tell.
        window: items of contexts, or listed pairs, that gradients are made of at a time.
        groups: in the table, of a window.
        pitch: places for what is found of queries, of an item of contexts or of a listed pair.
        found_slots: of which an item of queries has so many; 0 where tables tell.
    """

    kind: SearchKind
    tables: Tables
    planned: bool
    bits: int
    n_tiles: int
    tile_items: int
    window: int
    groups: int
    pitch: int
    found_slots: int


@dataclass(slots=True)
class MaxSimCall:
    """One call, its sides as contexts and queries: the side whose best are taken, and the one that takes them.

    Attributes:
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        context_column: of the contexts' items in pairs.
        options: of the scores.
        pooling: that tiles make of what they find; "none" where every query's best is asked for.
        empty_score: of pairs of an item without rows; None where there are no such.
        precision: of products.
        n_contexts, n_queries: items of either side.
        row_layouts, unit, sizes: layouts of either side, elements that strides count in, sizes for kernels.
    """

    contexts: Side
    queries: Side
    pairs: Tensor | None
    context_column: int
    options: MaxSimOptions
    pooling: str
    empty_score: float | None
    precision: str
    n_contexts: int
    n_queries: int
    row_layouts: tuple[RowLayout, RowLayout]
    unit: int
    sizes: tuple[SideSizes, SideSizes]

    @classmethod
    def of(cls, arguments: tuple[Any, ...], places: bool = False) -> MaxSimCall:
        """From what the operations take; of those that search for places, which pool is_empty.

        Raises what `both_sides` does.
        """
        pairs, empty_score, reduced = arguments[8:11]
        options = MaxSimOptions.of_codes(*arguments[11:])
        images, captions = map(_in_order, both_sides(arguments, empty_score is not None))
        pairs = None if pairs is None else pairs.contiguous()
        pooling = options.pooling if options.plain and not places else "none"
        context_column = int(options.direction != "t2i")
        contexts, queries = (captions, images) if context_column else (images, captions)
        precision = precisions(images.features.dtype, reduced)[0]
        row_layouts = contexts.row_layout, queries.row_layout
        unit = min(row_layouts[0].unit, row_layouts[1].unit)
        sizes = SideSizes.of(contexts, row_layouts[0], unit), SideSizes.of(queries, row_layouts[1], unit)
        return cls(
            contexts, queries, pairs, context_column, options, pooling, empty_score, precision, contexts.n_items,
            queries.n_items, row_layouts, unit, sizes,
        )  # fmt: skip

    @property
    def normalize(self) -> bool:
        """Whether similarities are cosines."""
        return self.options.normalize

    @property
    def soft(self) -> bool:
        """Whether maxima are soft."""
        return self.options.context_pooling != "max"

    @property
    def apart(self) -> bool:
        """Whether scores are made of maxima that lie in memory."""
        return not self.options.plain

    @property
    def device(self) -> torch.device:
        return self.contexts.features.device

    @property
    def dim(self) -> int:
        return self.contexts.features.size(-1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the scores."""
        if self.pairs is not None:
            return (self.pairs.size(0),)
        return self.in_order(self.n_contexts, self.n_queries)

    @property
    def is_empty(self) -> bool:
        """Whether no pair has rows of both sides, as far as the host knows."""
        if 0 in self.shape or not self.sizes[0].n_rows or not self.sizes[1].n_rows:
            return True
        if self.empty_score is None:
            return False
        return any(side.counts is not None and not side.counts.any() for side in (self.contexts, self.queries))

    def in_order(self, context_value: Value, query_value: Value) -> tuple[Value, Value]:
        """Values of contexts and queries as (image's, caption's)."""
        return (context_value, query_value) if self.context_column == 0 else (query_value, context_value)

    def cut(self, index: bool, gradients: bool) -> tuple[SearchKind, int]:
        """SearchKind of the kernels, and the queries of a tile of whole items; 0 where each item has its own.

        What kernels are compiled for follows from the sides' widths, never from lengths or how many items there are. A
        single item of queries, as a search has, is the exception: it has no others to share a tile with.
        """
        dtype, dim, listed = self.contexts.features.dtype, self.dim, self.pairs is not None
        width, alone = self.queries.width, self.n_queries == 1
        per_item = listed or width > SumMax.LARGEST_TILE
        # Without tensor cores a product's operands lie in registers: steps of D are short, fewer columns kept.
        # Fewer are kept of soft maxima, and where long items have places too. Scales, masks and places leave the
        # largest tile no room.
        in_registers, wide = self.precision == "ieee", dtype == torch.float32
        resident = dim <= SumMax.LARGEST_RESIDENT and not in_registers
        k = slots_for(dim) if resident else 16 if in_registers else 32 if wide else 64
        small = resident or in_registers
        m = min(slots_for(width), SumMax.LARGEST_TILE) if per_item or alone else SumMax.LARGEST_TILE
        values = gradients and (self.normalize or self.apart)
        plain = dim % k == 0 and not (small or index or values or self.normalize)
        if plain and not (per_item or alone):
            fills = [size // max(width, 1) * width / size for size in (SumMax.LARGEST_TILE, SumMax.LARGER_TILE)]
            m = SumMax.LARGER_TILE if fills[0] < SumMax.WELL_FILLED * fills[1] else m
        n = 64 if small or listed else min(SumMax.CELLS // m, 256)
        fewer = self.soft or in_registers or (index and per_item and not resident)
        columns = SumMax.COLUMNS // 2 if fewer else SumMax.COLUMNS
        kind = SearchKind(
            index, values, listed, self.context_column, self.pooling, self.normalize, self.soft,
            m, n, min(n, columns), k, resident, dim, self.unit, self.precision, 2 if wide and resident else 3,
        )  # fmt: skip
        return kind, 0 if per_item else m

    def key(self, *others: Hashable) -> Hashable:
        """Facts that kernels depend on besides their kinds."""
        contexts, queries = self.row_layouts
        values = self.contexts.features
        return values.device, values.dtype, contexts.aligned, contexts.far, queries.aligned, queries.far, *others

    def inverse_norms(self, is_context: bool) -> Tensor:
        place = 0 if is_context else 1
        sizes, features = self.sizes[place], (self.contexts, self.queries)[place].features
        scales = torch.empty(sizes.n_rows, dtype=torch.float32, device=self.device)
        launch(
            inverse_norms, (-(-sizes.n_rows // SumMax.NORM_ROWS), 1, 1), (features, scales, encoded_sizes(sizes)),
            NormKind(self.dim, self.unit, SumMax.NORM_ROWS, SumMax.NORM_COLUMNS),
            (self.device, features.dtype, self.row_layouts[place].aligned, self.row_layouts[place].far),
        )  # fmt: skip
        return scales

    @property
    def planned(self) -> bool:
        """Whether a plan saves more than it costs: shapes serve a call of any size."""
        contexts, queries = self.contexts, self.queries
        if self.pairs is not None or (contexts.counts is None and queries.counts is None):
            return False
        cells = self.n_contexts * contexts.slots * self.n_queries * queries.slots
        return cells * self.dim > SumMax.UNPLANNED_PRODUCTS

    def plan(self, index: bool, gradients: bool = False) -> MaxSimPlan:
        """For scores or, with `index`, for places; with `gradients` a window of contexts at a time.

        There is something to search.
        """
        contexts, queries = self.contexts, self.queries
        planned, found_slots, n_tiles = self.planned, queries.slots, self.n_queries
        kind, size = self.cut(index, gradients)
        depth = kind.N // kind.COLUMNS
        pitch = found_slots if self.pairs is not None else found_slots * n_tiles
        tables: tuple[Any, ...] = ()
        tile_items = 0
        if planned:
            lengths = queries.known_counts()
            empty = np.zeros(1, np.int32)
            tables = (empty,) * 3
            if size:
                tables = tiles_of(np.minimum(lengths, size), size)
                n_tiles = len(tables[0])
            if gradients:
                tables += (lengths.cumsum() - lengths, np.repeat(np.arange(len(lengths)), lengths))
                found_slots, pitch = 0, len(tables[-1])
            else:
                tables += (empty,) * 2
        elif size:
            tile_items = max(1, size // queries.slots)
            n_tiles = -(-n_tiles // tile_items)
        window = self.n_contexts
        if gradients:
            total = window if self.pairs is None else min(SumMax.PAIRS_AT_ONCE, self.pairs.size(0))
            bytes_of = 4 * (int(index) + int(kind.VALUES) + int(index and self.apart))
            window = max(1, min(total, SumMax.WORKSPACE_BYTES // (bytes_of * pitch)))
        bits = n_groups = 0
        if planned:
            lengths = contexts.known_counts()
            typical = -(-int(lengths.sum()) // len(lengths))
            bits = best_group_bits(window, typical, kind.COLUMNS, depth, n_tiles)
            groups = groups_of(lengths, bits, window)
            n_groups = groups.shape[1]
            device_tables = Tables(*on_device(self.device, groups, *tables))
        else:
            if self.pairs is None:
                bits = best_group_bits(window, contexts.slots, kind.COLUMNS, depth, n_tiles)
            device_tables = Tables(*[torch.empty(1, dtype=torch.int32, device=self.device)] * len(Tables._fields))
        return MaxSimPlan(kind, device_tables, planned, bits, n_tiles, tile_items, window, n_groups, pitch, found_slots)

    def operands(self) -> tuple[KernelSide, KernelSide]:
        """Contexts and queries as kernels read them."""
        return self._operand(is_context=True), self._operand(is_context=False)

    def _operand(self, is_context: bool) -> KernelSide:
        side = self.contexts if is_context else self.queries
        values, extents = side.features, side.extents
        if extents is None:
            extents = torch.empty(2, dtype=torch.int64, device=values.device)
        return KernelSide(values, self.inverse_norms(is_context) if self.normalize else extents, extents)

    def of_pairs(self, values: Tensor, is_context: bool) -> Tensor:
        """Values of a side's items (items, …) for the pairs: in the scores' shape, or broadcast to it."""
        if self.pairs is not None:
            return values[self.pairs[:, self.context_column if is_context else 1 - self.context_column]]
        return values.unsqueeze(1 if is_context == (self.context_column == 0) else 0)

    def empty(self) -> Tensor | None:
        """Which pairs have an item without rows, broadcast to the scores' shape; None where none has."""
        empty_pairs = None
        for side, is_context in ((self.contexts, True), (self.queries, False)):
            if self.empty_score is None or side.extents is None or (side.counts is not None and side.counts.all()):
                continue
            mask = self.of_pairs((side.extents.diff() if side.packed else side.extents) < 1, is_context)
            empty_pairs = mask if empty_pairs is None else empty_pairs | mask
        return empty_pairs


def _in_order(side: Side) -> Side:
    """With rows that a mask keeps ahead of others, and extents as kernels take them."""
    features, extents, places = side.features, side.extents, side.places
    if extents is None or (places is None and extents.is_contiguous() and extents.data_ptr() % 16 == 0):
        return side
    if places is not None:
        features = features.gather(1, places.unsqueeze(2).expand(features.shape))
    # In a tuple kernels would be compiled for where their memory begins.
    return side._replace(features=features, extents=extents.clone(memory_format=torch.contiguous_format))
