"""One call of Sum-Max on a GPU: its sides and options, and the kept plan that their lengths come to.

A plan is made at the first call with its lengths, layouts and options; its tables reach the device in one copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.gpu.kept_plans import kept_plan, on_device
from crossret_kernels.gpu.sides import MOST_ROWS, Geometry, HostSide, precisions
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.tables import Ints, Layout, blocks_of, groups_of, valid_rows
from crossret_kernels.padded.arithmetic import POOLINGS

if TYPE_CHECKING:
    from typing_extensions import Self


Of = TypeVar("Of")


class Side(NamedTuple):
    """A side as kernels read it.

    Attributes:
        features: as the caller has them, or packed by their mask.
        scales: (rows,) float32, 1 / ‖x‖ where similarities are cosines; else anything.
        firsts, lengths: (items,) int32; of an item without rows one of another's, and its scores are replaced.
    """

    features: Tensor
    scales: Tensor
    firsts: Tensor
    lengths: Tensor


class Strides(NamedTuple):
    """Rows lie `row` apart, groups of `per_item` rows `item`, both counted in 16 bytes if all begin at multiples."""

    per_item: int
    item: int
    row: int


class Tiles(NamedTuple):
    """As `tables.tiles_of` makes them."""

    rows: Tensor
    owners: Tensor
    items: Tensor


class Valid(NamedTuple):
    """As `tables.valid_rows` makes them."""

    rows: Tensor
    items: Tensor
    starts: Tensor


@dataclass(frozen=True)
class Rows:
    """What a plan has of a side.

    Attributes:
        firsts, lengths: (items,) int32 for kernels.
        strides: of the features that they read.
        longest, count: rows of the longest item, and of all with those that stand in for an empty item's.
        width: as of `Geometry`.
        n_rows: what features have room for.
        kept: (rows,) int32, where those that a mask keeps lie; None without a mask.
        empty: (items,) int32, 1 where an item has no rows; None where all have.
        blocks, borders: of gradients, as `tables.blocks_of` makes them, the borders on the host.
        block: rows of one, at most.
        covered: whether all rows are an item's.
        key: what kernels that read the features depend on besides their kinds.
    """

    firsts: Tensor
    lengths: Tensor
    strides: Strides
    longest: int
    count: int
    width: int
    n_rows: int
    kept: Tensor | None
    empty: Tensor | None
    blocks: Tensor
    borders: Ints
    block: int
    covered: bool
    key: Hashable


@dataclass(frozen=True)
class Plan:
    """What the lengths, layouts and options of a call come to.

    Attributes:
        contexts, queries: of either side.
        dim: D.
        kind: what the backend searches by.
        tiles: of queries; None where each item has its own.
        n_tiles: so many of them.
        groups: of contexts, in windows of so many items at a time.
        bits: log₂ of the items of a group.
        window: items of contexts, or listed pairs, that gradients are made of at a time.
        valid: of queries, for gradients.
        launches: sizes of those that were made, by what differs between them.
    """

    contexts: Rows
    queries: Rows
    dim: int
    kind: Any
    tiles: Tiles | None
    n_tiles: int
    groups: Tensor
    bits: int
    window: int
    valid: Valid
    launches: dict[Hashable, Any]


class Shape(NamedTuple):
    """A side's items on the host: where they lie for kernels, what they really have, and what stands in for none."""

    host: Geometry
    layout: Layout
    counts: Ints
    kept: Ints | None
    n_rows: int
    strides: tuple[int, int, int]  # as `Strides`, in elements
    aligned: bool
    unit: int  # elements of 16 bytes where every row begins at a multiple of them; else 1

    @classmethod
    def of(cls, side: HostSide, may_be_empty: bool) -> Shape:
        """Raises what `HostSide.geometry` does, and UnsupportedByBackend where padding makes rows too many."""
        values, host = side.features, side.geometry(may_be_empty)
        counts = host.lengths.astype(np.int64)
        firsts = host.starts[:-1]
        n_rows, row = values.size(0), values.stride(0)
        kept, strides = None, (1, row, row)
        aligned = values.data_ptr() % 16 == 0
        if not side.packed:
            n, longest, dim = values.shape
            padded = np.arange(n) * longest
            n_rows, item, row = n * longest, values.stride(0), values.stride(1)
            if side.masked:
                assert host.places is not None
                kept, n_rows, strides = np.repeat(padded, counts) + host.places, host.n_rows, (1, dim, dim)
                aligned = True
            else:
                firsts = padded
                # Where all rows lie alike kernels need not divide to find them.
                strides = (1, row, row) if item == longest * row else (max(longest, 1), item, row)
        if n_rows >= MOST_ROWS:
            raise UnsupportedByBackend(
                f"no GPU backend serves this call: they take up to {MOST_ROWS - 1} rows of a side, padding included, "
                f"these are {n_rows}"
            )
        lengths = counts
        if host.n_rows and not counts.all():
            firsts = np.where(counts > 0, firsts, firsts[(counts > 0).argmax()])
            lengths = np.maximum(counts, 1)
        unit = 16 // values.element_size() if aligned else 1
        unit = 1 if any(stride % unit for stride in strides[1:]) else unit
        return cls(host, Layout(firsts, lengths), counts, kept, n_rows, strides, aligned, unit)


class Tiling(NamedTuple):
    """How a backend cuts both sides of a call up.

    Attributes:
        kind: what it searches by.
        columns, depth: of its tiles, as `tables.groups_of` takes them.
        tiles: of queries, as `tables.tiles_of` makes them; () where each item has its own.
        n_tiles: so many of them.
        unit: elements that strides count in.
    """

    kind: Any
    columns: int
    depth: int
    tiles: tuple[Ints, ...]
    n_tiles: int
    unit: int


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
    """

    contexts: HostSide
    queries: HostSide
    pairs: Tensor | None
    context_column: int
    pooling: str
    normalize: bool
    empty_score: float | None
    precision: str

    @classmethod
    def of(cls, arguments: tuple[Any, ...], places: bool = False) -> Self:
        """From what the operations take; of those that search for places, which pool nothing."""
        images, captions, pairs = HostSide.of(*arguments[:4]), HostSide.of(*arguments[4:8]), arguments[8]
        empty_score, reduced, direction, normalize = arguments[9:13]
        pairs = None if pairs is None else pairs.contiguous()
        pooling = "none" if places else POOLINGS[arguments[13]]
        sides = (images, captions) if direction == 0 else (captions, images)
        precision = precisions(images.features.dtype, reduced)[0]
        return cls(*sides, pairs, direction, pooling, normalize, empty_score, precision)

    @property
    def device(self) -> torch.device:
        return self.contexts.features.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the scores."""
        if self.pairs is not None:
            return (self.pairs.size(0),)
        return self.in_order(self.contexts.n_items, self.queries.n_items)

    def in_order(self, of_contexts: Of, of_queries: Of) -> tuple[Of, Of]:
        """What there is of either side as (image's, caption's)."""
        return (of_contexts, of_queries) if self.context_column == 0 else (of_queries, of_contexts)

    def plan(self, index: bool, gradients: bool = False) -> Plan | None:
        """For scores or, with `index`, for places; None where a side has no rows at all."""
        values = self.contexts.features
        key = (
            type(self), index, gradients, values.device, values.dtype, self.precision, self.context_column,
            self.pooling, self.normalize,
            None if self.pairs is None else self.pairs.size(0) if gradients else 0, self.empty_score is None,
            self.contexts.layout, self.contexts.key, self.queries.layout, self.queries.key,
        )  # fmt: skip
        found = kept_plan(_Kept, key, values.device, lambda: self._plan(index, gradients, self.precision))
        return found.plan

    @abstractmethod
    def tiling(
        self, queries: Shape, contexts: Shape, index: bool, gradients: bool, precision: str, unit: int
    ) -> Tiling:
        """For scores or, with `index`, for places; `unit` is that of both sides."""

    @abstractmethod
    def inverse_norms(self, values: Tensor, rows: Rows, plan: Plan) -> Tensor:
        """1 / ‖x‖ of the rows (rows.n_rows,), float32."""

    @property
    def keeps_maxima(self) -> bool:
        """Whether gradients are made of similarities too, beside the best contexts' places."""
        return self.normalize

    def sides(self, plan: Plan) -> tuple[Side, Side]:
        """Contexts and queries."""
        return self._side(self.contexts.features, plan.contexts, plan), self._side(
            self.queries.features, plan.queries, plan
        )

    def _side(self, values: Tensor, rows: Rows, plan: Plan) -> Side:
        if rows.kept is not None:
            values = values.flatten(0, 1).index_select(0, rows.kept)
        scales = self.inverse_norms(values, rows, plan) if self.normalize else rows.lengths
        return Side(values, scales, rows.firsts, rows.lengths)

    def of_pairs(self, of_items: Tensor, of_contexts: bool) -> Tensor:
        """What items of a side have (items, …), as that of pairs' items: in the scores' shape, or broadcast to it."""
        if self.pairs is not None:
            return of_items[self.pairs[:, self.context_column if of_contexts else 1 - self.context_column]]
        return of_items.unsqueeze(1 if of_contexts == (self.context_column == 0) else 0)

    def empty(self, plan: Plan) -> Tensor | None:
        """Which pairs have an item without rows, in the shape of the scores; None where none has."""
        masks = [
            self.of_pairs(rows.empty, of_contexts=own).bool()
            for rows, own in ((plan.contexts, True), (plan.queries, False))
            if rows.empty is not None
        ]
        return torch.stack(torch.broadcast_tensors(*masks)).any(0).expand(self.shape) if masks else None

    def _plan(self, index: bool, gradients: bool, precision: str) -> _Kept:
        may_be_empty = self.empty_score is not None
        contexts, queries = (Shape.of(side, may_be_empty) for side in (self.contexts, self.queries))
        if not contexts.host.n_rows or not queries.host.n_rows:
            return _Kept(None, ())
        unit = min(contexts.unit, queries.unit)
        tiling = self.tiling(queries, contexts, index, gradients, precision, unit)
        unit, n_items = tiling.unit, len(contexts.counts)
        count = int(queries.layout.lengths.sum())
        window = n_items
        if gradients:
            width = queries.host.longest if self.pairs is not None else count
            total = min(SumMax.PAIRS_AT_ONCE, self.pairs.size(0)) if self.pairs is not None else n_items
            window = max(1, min(total, SumMax.WORKSPACE_BYTES // ((8 if self.keeps_maxima else 4) * width)))
        listed = self.pairs is not None
        bits, groups = groups_of(
            contexts.layout, tiling.columns, tiling.depth, 1 if listed else window, 1 if listed else tiling.n_tiles
        )
        tables: list[Any] = [groups, *tiling.tiles]
        most = SumMax.BLOCK_OF_CONTEXTS, SumMax.BLOCK_OF_QUERIES
        sizes = [min(size, slots_for(side.host.width)) for side, size in zip((contexts, queries), most, strict=True)]
        borders = []
        for side, size in zip((contexts, queries), sizes, strict=True):
            of_blocks, of_items = blocks_of(side.layout.firsts, side.counts, size)
            borders.append(of_items)
            tables += [*side.layout, of_blocks if gradients else of_items[:1]]
            tables += [] if side.kept is None else [side.kept]
            tables += [] if side.counts.all() else [side.counts == 0]
        tables += valid_rows(queries.layout) if gradients else ()
        there = on_device(self.device, *tables)
        brought = iter(there)
        groups_there = next(brought)
        tiles = Tiles(*(next(brought) for _ in tiling.tiles)) if tiling.tiles else None
        of_contexts = self._rows(contexts, brought, unit, borders[0], sizes[0])
        of_queries = self._rows(queries, brought, unit, borders[1], sizes[1])
        valid = Valid(*brought) if gradients else Valid(*[of_queries.lengths] * 3)
        plan = Plan(
            of_contexts, of_queries, self.contexts.features.size(-1), tiling.kind, tiles, tiling.n_tiles, groups_there,
            bits, window, valid, {},
        )  # fmt: skip
        return _Kept(plan, there)

    def _rows(self, side: Shape, brought: Any, unit: int, borders: Ints, block: int) -> Rows:
        firsts, lengths, blocks = next(brought), next(brought), next(brought)
        kept = None if side.kept is None else next(brought)
        empty = None if side.counts.all() else next(brought)
        per_item, item, row = side.strides
        strides = Strides(per_item, item // unit, row // unit)
        key = (self.device, self.contexts.features.dtype, side.aligned, max(strides) >= 2**30 - 2)
        return Rows(
            firsts, lengths, strides, side.host.longest, int(side.layout.lengths.sum()), side.host.width, side.n_rows,
            kept, empty, blocks, borders, block, int(side.counts.sum()) == side.n_rows, key,
        )  # fmt: skip


@dataclass(frozen=True)
class _Kept:
    """A plan, None where none is needed, and all of its tables."""

    plan: Plan | None
    tables: tuple[Tensor, ...]
