"""One call of Sum-Max on a GPU: its sides and options, and how it is cut up into tiles, groups and parts.

Small calls are cut up by their shapes alone, and kernels read lengths where they lie on the device: nothing is planned,
copied or waited for. Larger ones have tables made of their lengths, in one copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.gpu.planning import on_device
from crossret_kernels.gpu.sides import Rows, Side, both_sides, precisions
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.tables import best_abreast, groups_of, tiles_of
from crossret_kernels.padded.arithmetic import POOLINGS

if TYPE_CHECKING:
    from typing_extensions import Self


Of = TypeVar("Of")


class Operand(NamedTuple):
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
        told: 1 where extents tell lengths, else 0.
    """

    slots: int
    most: int
    n_rows: int
    item: int
    row: int
    told: int

    @classmethod
    def of(cls, side: Side, rows: Rows, unit: int) -> SideSizes:
        """With strides counted in so many elements."""
        most, told, count = side.slots, int(side.extents is not None), side.features.size(0)
        slots, n_rows = (0, count) if side.packed else (most, count * most)
        return cls(slots, most, n_rows, rows.item_stride // unit, rows.row_stride // unit, told)


class Tables(NamedTuple):
    """What is made of lengths, int32; anything where shapes tell.

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


class Cut(NamedTuple):
    """How a backend cuts both sides of a call up.

    Attributes:
        kind: what it searches by.
        columns, depth: of its tiles, as `tables.best_abreast` takes them.
        size: queries of a tile of whole items; 0 where each item has its own.
    """

    kind: Any
    columns: int
    depth: int
    size: int


class Plan(NamedTuple):
    """What a call comes to.

    Attributes:
        kind: what the backend searches by.
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

    kind: Any
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
class Call(ABC):
    """One call, its sides as contexts and queries: the side whose best are taken, and the one that takes them.

    Attributes:
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        context_column: of the contexts' items in pairs.
        pooling: of the scores; "none" where every query's best is asked for.
        normalize: whether similarities are cosines.
        empty_score: of pairs of an item without rows; None where there are no such.
        precision: of products.
        n_contexts, n_queries: items of either side.
        lies, unit, sizes: how rows of either side lie, the elements that strides count in, and sizes for kernels.
    """

    COUNTS_UNITS: ClassVar[bool] = False

    contexts: Side
    queries: Side
    pairs: Tensor | None
    context_column: int
    pooling: str
    normalize: bool
    empty_score: float | None
    precision: str
    n_contexts: int
    n_queries: int
    lies: tuple[Rows, Rows]
    unit: int
    sizes: tuple[SideSizes, SideSizes]

    @classmethod
    def of(cls, arguments: tuple[Any, ...], places: bool = False) -> Self:
        """From what the operations take; of those that search for places, which pool nothing.

        Raises what `both_sides` does.
        """
        pairs, empty_score, reduced, direction, normalize = arguments[8:13]
        images, captions = map(_in_order, both_sides(arguments, empty_score is not None))
        pairs = None if pairs is None else pairs.contiguous()
        pooling = "none" if places else POOLINGS[arguments[13]]
        contexts, queries = (images, captions) if direction == 0 else (captions, images)
        precision = precisions(images.features.dtype, reduced)[0]
        lies = contexts.rows, queries.rows
        unit = min(lies[0].unit, lies[1].unit) if cls.COUNTS_UNITS else 1
        sizes = SideSizes.of(contexts, lies[0], unit), SideSizes.of(queries, lies[1], unit)
        return cls(
            contexts, queries, pairs, direction, pooling, normalize, empty_score, precision, contexts.n_items,
            queries.n_items, lies, unit, sizes,
        )  # fmt: skip

    @property
    def device(self) -> torch.device:
        return self.contexts.features.device

    @property
    def dim(self) -> int:
        return self.contexts.features.size(-1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the scores."""
        if self.pairs is not None:
            return (self.pairs.size(0),)
        return self.in_order(self.n_contexts, self.n_queries)

    @property
    def nothing(self) -> bool:
        """Whether no pair has rows of both sides, as far as the host knows."""
        if 0 in self.shape or not self.sizes[0].n_rows or not self.sizes[1].n_rows:
            return True
        if self.empty_score is None:
            return False
        return any(side.counts is not None and not side.counts.any() for side in (self.contexts, self.queries))

    def in_order(self, of_contexts: Of, of_queries: Of) -> tuple[Of, Of]:
        """What there is of either side as (image's, caption's)."""
        return (of_contexts, of_queries) if self.context_column == 0 else (of_queries, of_contexts)

    @abstractmethod
    def cut(self, index: bool, gradients: bool, planned: bool) -> Cut:
        """For scores or, with `index`, for places."""

    @abstractmethod
    def inverse_norms(self, of_contexts: bool) -> Tensor:
        """1 / ‖x‖ of a side's rows as `SideSizes` numbers them, float32."""

    @property
    def keeps_maxima(self) -> bool:
        """Whether gradients are made of similarities too, beside the best contexts' places."""
        return self.normalize

    @property
    def planned(self) -> bool:
        """Whether a plan saves more than it costs: shapes serve a call of any size."""
        contexts, queries = self.contexts, self.queries
        if self.pairs is not None or (contexts.counts is None and queries.counts is None):
            return False
        cells = self.n_contexts * contexts.slots * self.n_queries * queries.slots
        return cells * self.dim > SumMax.UNPLANNED_PRODUCTS

    def plan(self, index: bool, gradients: bool = False) -> Plan:
        """For scores or, with `index`, for places; there is something to search."""
        contexts, queries = self.contexts, self.queries
        planned, found_slots, n_tiles = self.planned, queries.slots, self.n_queries
        cut = self.cut(index, gradients, planned)
        pitch = found_slots if self.pairs is not None else found_slots * n_tiles
        tables: tuple[Any, ...] = ()
        tile_items = 0
        if planned:
            lengths = queries.known_counts()
            empty = np.zeros(1, np.int32)
            tables = (empty,) * 3
            if cut.size:
                tables = tiles_of(np.minimum(lengths, cut.size), cut.size)
                n_tiles = len(tables[0])
            if gradients:
                tables += (lengths.cumsum() - lengths, np.repeat(np.arange(len(lengths)), lengths))
                found_slots, pitch = 0, len(tables[-1])
            else:
                tables += (empty,) * 2
        elif cut.size:
            tile_items = max(1, cut.size // queries.slots)
            n_tiles = -(-n_tiles // tile_items)
        window = self.n_contexts
        if gradients:
            total = window if self.pairs is None else min(SumMax.PAIRS_AT_ONCE, self.pairs.size(0))
            window = max(1, min(total, SumMax.WORKSPACE_BYTES // ((8 if self.keeps_maxima else 4) * pitch)))
        bits = n_groups = 0
        if planned:
            lengths = contexts.known_counts()
            typical = -(-int(lengths.sum()) // len(lengths))
            bits = best_abreast(window, typical, cut.columns, cut.depth, n_tiles)
            groups = groups_of(lengths, bits, window)
            n_groups = groups.shape[1]
            brought = Tables(*on_device(self.device, groups, *tables))
        else:
            if self.pairs is None:
                bits = best_abreast(window, contexts.slots, cut.columns, cut.depth, n_tiles)
            brought = Tables(*[torch.empty(1, dtype=torch.int32, device=self.device)] * len(Tables._fields))
        return Plan(cut.kind, brought, planned, bits, n_tiles, tile_items, window, n_groups, pitch, found_slots)

    def operands(self) -> tuple[Operand, Operand]:
        """Contexts and queries as kernels read them."""
        return self._operand(of_contexts=True), self._operand(of_contexts=False)

    def _operand(self, of_contexts: bool) -> Operand:
        side = self.contexts if of_contexts else self.queries
        values, extents = side.features, side.extents
        if extents is None:
            extents = torch.empty(2, dtype=torch.int64, device=values.device)
        return Operand(values, self.inverse_norms(of_contexts) if self.normalize else extents, extents)

    def of_pairs(self, of_items: Tensor, of_contexts: bool) -> Tensor:
        """What items of a side have (items, …), as that of pairs' items: in the scores' shape, or broadcast to it."""
        if self.pairs is not None:
            return of_items[self.pairs[:, self.context_column if of_contexts else 1 - self.context_column]]
        return of_items.unsqueeze(1 if of_contexts == (self.context_column == 0) else 0)

    def empty(self) -> Tensor | None:
        """Which pairs have an item without rows, broadcast to the scores' shape; None where none has."""
        found = None
        for side, of_contexts in ((self.contexts, True), (self.queries, False)):
            if self.empty_score is None or side.extents is None or (side.counts is not None and side.counts.all()):
                continue
            own = self.of_pairs((side.extents.diff() if side.packed else side.extents) < 1, of_contexts)
            found = own if found is None else found | own
        return found


def _in_order(side: Side) -> Side:
    """With rows that a mask keeps ahead of others, and extents as kernels take them."""
    features, extents, places = side.features, side.extents, side.places
    if extents is None or (places is None and extents.is_contiguous() and extents.data_ptr() % 16 == 0):
        return side
    if places is not None:
        features = features.gather(1, places.unsqueeze(2).expand(features.shape))
    # In a tuple kernels would be compiled for where their memory begins.
    return side._replace(features=features, extents=extents.clone(memory_format=torch.contiguous_format))
