"""One call of stacked cross attention in Triton: its sides, options and plan; rows packed for the kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.gpu.kept_plans import kept_plan, on_device
from crossret_kernels.gpu.planning import cut
from crossret_kernels.gpu.sides import Geometry, HostSide, Rows, power_from, precisions, shared_memory
from crossret_kernels.gpu.triton_launch import hidden, launch
from crossret_kernels.gpu.triton_tiles import shown
from crossret_kernels.gpu.tuning import LEAST, Attention, slots_for

LARGEST_FREE_LOGIT = 20.0  # weights of exp(±20) squared keep their digits in float32, whatever the features' length
MOST_LENGTH = tl.constexpr(3.1e7)  # of rows: their products, and the squares of those, are far from float32's end
STEP = tl.constexpr(Attention.STEP)
MOST_MADE = 64  # things that a plan keeps: of listed pairs every number of them has its own

Made = TypeVar("Made")


class Packed(NamedTuple):
    """A run of one side as kernels read it.

    Attributes:
        rows: (rows, D) without gaps, D rounded up to `STEP`; what was not finite is zero.
        norms: (rows,) float32, NaN where a row was not finite.
        powers: (rows,) float32, by what rows were multiplied that are to be divided by their length.
        items: (items, 3) int32, first row, number of rows and, of contexts, flags: see `forward.BROKEN`.
    """

    rows: Tensor
    norms: Tensor
    powers: Tensor
    items: Tensor


class Numbers(NamedTuple):
    """Options that kernels are not compiled for."""

    slope: float
    lambda_softmax: float
    lambda_lse: float
    empty_score: float


class Kind(NamedTuple):
    """What kernels of pairs are compiled for.

    Attributes:
        CLIPS, NORM, NORMALIZE, POOLING: options; NORM is raw_feature_norm without the clip.
        SHIFTED: whether the greatest logit is taken out.
        LISTED: whether pairs are listed.
        LONG, WIDE: whether items of queries may take several tiles, those of contexts several blocks.
        SAVE: whether gradients are to follow.
        MEND: whether attended vectors that cancel are made, where a first pass has found such.
        LAST: whether a pass over long queries' gradients is the last.
        G, N: items and rows of a tile of queries.
        D: of packed rows.
        C, K: contexts of a block, columns of features of a step.
        MAIN, FINE: precision of products of features, and of those after them.
    """

    CLIPS: bool
    NORM: str
    SHIFTED: bool
    NORMALIZE: bool
    POOLING: str
    LISTED: bool
    LONG: bool
    WIDE: bool
    SAVE: bool
    MEND: bool
    LAST: bool
    G: int
    D: int
    N: int
    C: int
    K: int
    MAIN: str
    FINE: str


class RowKind(NamedTuple):
    """What kernels that pack a side's rows are compiled for.

    Attributes:
        PACKED, MASKED: how the side lies.
        LISTED, NORMALIZE: of the call.
        UNIT: elements that its strides are counted in.
        DIM, D: of its rows, and packed.
        WIDTH, ROWS: columns, at least D, and rows of a program.
    """

    PACKED: bool
    MASKED: bool
    LISTED: bool
    NORMALIZE: bool
    UNIT: int
    DIM: int
    D: int
    WIDTH: int
    ROWS: int


class Source(NamedTuple):
    """Where a side's rows lie, and which of them a run takes: items from `first` on, or of listed pairs a column.

    Attributes:
        item_stride, row_stride: elements, counted in UNIT.
        slots: rows that a listed item takes.
    """

    item_stride: int
    row_stride: int
    first: int
    slots: int
    column: int


class Form:
    """What calls are alike in whatever their lengths: options, and how features lie.

    Attributes:
        options: of the scores; `numbers` what kernels take of them.
        may_be_empty, listed: whether items may be, whether pairs are.
        order: of images and captions as contexts and queries, and back: 1 or -1, a slice's step.
        device, dtype: of the features.
        dim: D of packed rows.
        precisions: of products of features, and of those after them.
        kinds: of kernels that pack rows of contexts, of queries.
        strides: of their items and rows, counted in UNIT.
        columns: of their items in pairs.
        keys: what these kernels depend on beside their kind and the packed rows' dtype; `key` what others do.
    """

    def __init__(
        self, features: tuple[torch.device, torch.dtype, int], precise: tuple[str, str], listed: bool,
        layouts: tuple[Any, Any], empty: float | None, codes: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self.options = own = CrossAttentionOptions.of_codes(*codes)
        self.numbers = Numbers(own.clip_slope, own.lambda_softmax, own.lambda_lse, float(empty or 0.0))
        self.may_be_empty, self.listed, self.precisions = empty is not None, listed, precise
        self.order = 1 if own.direction == "t2i" else -1
        self.columns = (0, 1)[:: self.order]
        self.device, self.dtype, dim = features
        self.dim = -(-dim // STEP.value) * STEP.value
        self.key = self.device, self.dtype
        width = slots_for(self.dim)
        sides = [
            (Rows.of(strides, offset, self.dtype.itemsize), len(strides) == 2, integers is torch.bool)
            for strides, offset, integers in layouts[:: self.order]
        ]
        of_call, of_rows = (listed, own.normalize), (dim, self.dim, width, max(1, Attention.PACKED_ELEMENTS // width))
        self.kinds = [RowKind(packed, masked, *of_call, rows.unit, *of_rows) for rows, packed, masked in sides]
        self.strides = [(rows.item_stride // rows.unit, rows.row_stride // rows.unit) for rows, _, _ in sides]
        self.keys = [(self.key, rows.far, rows.aligned) for rows, _, _ in sides]


form_of = lru_cache(256)(Form)


class Plan:
    """What the lengths of both sides come to, on the host and on the device.

    What kernels are compiled for follows from the sides' widths alone, never from lengths or how many items there are:
    no batch of a training compiles what the first one did not.

    Attributes:
        form: of the calls that it is for.
        contexts, queries: the attended and the attending side, how their items follow one another.
        shape: of the scores of all pairs.
        filled: whether both sides have a row at all.
        tile, block: rows of queries in a tile, contexts in a block.
        long, wide: whether queries' items may take several tiles, contexts' several blocks.
        most_items: places for items of queries in a tile.
        pieces: tiles that an item of queries takes at most.
        tile_rows, tile_items: of tiles of queries the first rows and items, ending with what is behind the last.
        tables: all that the device has.
        tiles: (tiles + 1, 2) int32, tile_rows and tile_items.
        starts: of contexts and of queries, (items + 1,) int32, where their rows begin among all of their side.
        places: likewise, (rows,) int32 among their item's places, where a mask has holes; else as starts.
    """

    def __init__(self, form: Form, images: HostSide, captions: HostSide) -> None:
        self.form = form
        contexts, queries = (side.geometry(form.may_be_empty) for side in (images, captions)[:: form.order])
        self.contexts, self.queries = contexts, queries
        longest = queries.longest
        self.shape = (len(contexts.lengths), len(queries.lengths))[:: form.order]
        self.filled = contexts.n_rows > 0 and queries.n_rows > 0

        self.block = min(Attention.BLOCK, slots_for(contexts.width))
        self.wide = contexts.width > self.block
        most = Attention.tile(shared_memory(form.device), form.precisions[0] == "ieee", self.wide)
        self.long = queries.width > most
        self.tile = min(most, slots_for(queries.width)) if form.listed else most
        full = LEAST if form.listed or self.long else 2 * self.tile // power_from(queries.width)
        self.most_items = min(Attention.MOST_ITEMS, max(LEAST, full))
        self.pieces = max(1, -(-longest // self.tile))
        self.tile_rows, self.tile_items = tiles_of(queries, self.tile, self.most_items, self.long)

        tiles = np.array([x for tile in zip(self.tile_rows, self.tile_items, strict=True) for x in tile], np.int32)
        places = [side.places for side in (contexts, queries) if side.places is not None]
        self.tables = on_device(form.device, tiles, contexts.starts, queries.starts, *places)
        self.tiles, *starts = self.tables[:3]
        self.starts, rest = starts, iter(self.tables[3:])
        self.places = [
            own if side.places is None else next(rest) for side, own in zip((contexts, queries), starts, strict=True)
        ]
        self._made: dict[Hashable, Any] = {}

    def kept(self, make: Callable[..., Made], *key: Hashable) -> Made:
        """What `make` makes of the plan and the key, made once; it is on the host alone."""
        found: Made | None = self._made.get((make, key))
        if found is None:
            found = make(self, *key)
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            self._made[make, key] = found
        return found


def tiles_of(side: Geometry, size: int, most: int, long: bool) -> tuple[list[int], list[int]]:
    """First rows and first items of tiles of at most `size` rows and `most` whole items; ends with what is behind them.

    Of `long` items, which may have more rows than that, tiles hold a piece of one item each.
    """
    if long:
        pieces = np.maximum(-(-side.lengths // size), 1)
        owners = np.repeat(np.arange(len(pieces)), pieces)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        rows = side.starts[owners] + within * size
        return [*rows.tolist(), side.n_rows], [*owners.tolist(), len(pieces)]
    items = cut((side.starts, size), most_items=most)
    return side.starts[items].tolist(), items


def kind_of(plan: Plan, packed: torch.dtype) -> Kind:
    """What kernels of pairs are compiled for, with rows packed in this dtype."""
    form, options, (main, fine) = plan.form, plan.form.options, plan.form.precisions
    free = options.norm != "none" and abs(options.lambda_softmax) <= LARGEST_FREE_LOGIT
    step = Attention.step(packed.itemsize, tf32=main == "tf32")
    return Kind(
        options.clips, options.norm, not free, options.normalize, options.pooling, form.listed, plan.long, plan.wide,
        False, False, False, plan.most_items, form.dim, plan.tile, plan.block, step, main, fine,
    )  # fmt: skip


# Of a named tuple's fields others are seldom new.
replaced = lru_cache(256)(lambda kind, **fields: kind._replace(**fields))


class Part:
    """A part of a side, as it is packed: items, or of listed pairs their items.

    Attributes:
        own, dtype: whether of contexts (0) or queries (1), and of what dtype rows are packed.
        first, count, n_rows: items, and rows packed, at least 1: of nothing but empty items one is read.
        filled: whether there are rows at all.
        grid, source, key: of the kernel.
    """

    def __init__(self, plan: Plan, own: int, bounds: tuple[int, int], dtype: torch.dtype) -> None:
        form, side, (first, last) = plan.form, (plan.contexts, plan.queries)[own], bounds
        self.own, self.dtype, self.first = own, dtype, first
        n_rows = (last - first) * side.longest if form.listed else int(side.starts[last] - side.starts[first])
        self.count, self.n_rows, self.filled = last - first, max(n_rows, 1), n_rows > 0
        self.grid = self.count, max(1, -(-side.longest // form.kinds[own].ROWS)), 1
        self.source = Source(*map(hidden, (*form.strides[own], first, side.longest, form.columns[own])))
        self.key = form.keys[own], dtype


class Call:
    """One call: its plan, and what calls of one plan differ in.

    Attributes:
        form, plan: of its options and layouts, of its lengths.
        sides: features of contexts and queries.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        shape: of the scores.
    """

    def __init__(self, *arguments: Any) -> None:
        """From what the operation `crossret::scan_scores_triton` takes."""
        images, captions = HostSide.of(*arguments[:4]), HostSide.of(*arguments[4:8])
        features, pairs = images.features, arguments[8]
        given, listed = (features.device, features.dtype, features.shape[-1]), pairs is not None
        layouts = images.layout, captions.layout
        form = form_of(given, precisions(features.dtype, arguments[10]), listed, layouts, arguments[9], arguments[11:])
        key = form, images.key, captions.key
        self.plan = kept_plan(Plan, key, form.device, lambda: Plan(form, images, captions))
        self.form = form
        self.pairs: Tensor | None = pairs.contiguous() if listed else None
        self.sides = (features, captions.features)[:: form.order]
        self.shape = (pairs.size(0),) if listed else self.plan.shape

    def pack(self, part: Part) -> Packed:
        """A part's rows."""
        form, plan, own = self.form, self.plan, part.own
        kind, device, starts = form.kinds[own], form.device, plan.starts[own]
        empty = torch.empty if part.filled else torch.zeros
        rows = empty(part.n_rows, form.dim, dtype=part.dtype, device=device)
        norms = empty(part.n_rows, dtype=torch.float32, device=device)
        powers = torch.empty_like(norms) if kind.NORMALIZE else norms
        packed = Packed(rows, norms, powers, torch.empty(part.count, 3, dtype=torch.int32, device=device))
        pairs = starts if self.pairs is None else self.pairs
        arguments = self.sides[own], starts, plan.places[own], pairs, packed, part.source
        launch(pack_rows, part.grid, arguments, kind, part.key)
        return packed


def aligned(count: int) -> int:
    """As many numbers of four bytes or more, so that what follows begins at a multiple of 16."""
    return -(-count // 4) * 4


@triton.jit
def row_offsets(place, item, start, source, KIND: tl.constexpr):
    """Where rows begin that stand in these places of an item, which begins at `start` if packed."""
    offsets = place.to(tl.int64) * shown(source.row_stride)
    if KIND.PACKED:
        return offsets + start.to(tl.int64) * shown(source.row_stride)
    return offsets + item * shown(source.item_stride)


@triton.jit(do_not_specialize=["source"], do_not_specialize_on_alignment=["pairs"])
def pack_rows(features, starts, places, pairs, packed, source, KIND: tl.constexpr):
    """Copies ROWS rows of an item into a run, with their lengths; zeros and NaN of rows that are not finite.

    Rows that are to be divided by their length get one in [1, 2) by a power of two first, which rounds nothing.
    """
    ROWS: tl.constexpr = KIND.ROWS
    D: tl.constexpr = KIND.D
    number = tl.program_id(0)
    if KIND.LISTED:
        item = tl.load(pairs + 2 * (shown(source.first) + number.to(tl.int64)) + shown(source.column))
        first = number * shown(source.slots)
    else:
        item = (shown(source.first) + number).to(tl.int64)
        first = tl.load(starts + item) - tl.load(starts + shown(source.first))
    start = tl.load(starts + item)
    count = tl.load(starts + item + 1) - start
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = r < count
    if tl.program_id(1) == 0:
        tl.store(packed.items + 3 * number, first)
        tl.store(packed.items + 3 * number + 1, count)
    place = r
    if KIND.MASKED:
        place = tl.load(places + start + r, mask=there, other=0)
    offsets = row_offsets(place, item, start, source, KIND) * KIND.UNIT
    d = tl.arange(0, KIND.WIDTH)
    x = tl.load(features + offsets[:, None] + d[None, :], mask=there[:, None] & (d < KIND.DIM)[None, :], other=0.0)
    x = x.to(tl.float32)
    largest = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 1)  # what a maximum with NaN is differs by version
    fine = largest < float("inf")
    x = tl.where(fine[:, None], x, 0.0)
    scale = tl.where(fine & (largest > 0), largest, 1.0)  # so that squares neither overflow nor vanish
    norms = scale * tl.sqrt(tl.sum((x / scale[:, None]) * (x / scale[:, None]), 1))
    if KIND.NORMALIZE:
        fine = fine & (norms < float("inf"))
        norms = tl.where(norms >= 2.0**-126, norms, 0.0)
        exponent = norms.to(tl.int32, bitcast=True) & 0x7F800000
        power = tl.where(norms > 0, (0x7F000000 - exponent).to(tl.float32, bitcast=True), 0.0)
        norms, x = norms * power, x * power[:, None]
        tl.store(packed.powers + first + r, power, mask=there)
    else:
        fine = fine & (norms < MOST_LENGTH)
        norms = tl.where(norms >= 2.0**-126, norms, 0.0)
    x = tl.where(fine[:, None], x, 0.0)
    kept = r < (shown(source.slots) if KIND.LISTED else count)
    cells = packed.rows + (first + r).to(tl.int64)[:, None] * D + d[None, :]
    tl.store(cells, x.to(packed.rows.dtype.element_ty), mask=kept[:, None] & (d < D)[None, :])
    tl.store(packed.norms + first + r, tl.where(fine, norms, float("nan")), mask=kept)
