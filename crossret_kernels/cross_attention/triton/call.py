"""One call of stacked cross attention in Triton: its sides and options; rows packed for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.gpu.sides import RowLayout, Side, both_sides, power_from, precisions, shared_memory
from crossret_kernels.gpu.triton_launch import encoded, launch
from crossret_kernels.gpu.triton_tiles import decoded
from crossret_kernels.gpu.tuning import LEAST, Attention, slots_for

LARGEST_FREE_LOGIT = 20.0  # weights of exp(±20) squared keep their digits in float32, whatever the features' length
MOST_LENGTH = tl.constexpr(3.1e7)  # of rows: their products, and the squares of those, are far from float32's end
STEP = tl.constexpr(Attention.STEP)
TOGETHER = tl.constexpr(4)  # contexts that a lane loads at once: those of every item begin at multiples of it
PITCH = 16  # rows of contexts of a part are a multiple of it, so that products take no narrow loads


class Packed(NamedTuple):
    """Rows of a part of one side as kernels read them.

    Attributes:
        rows: (rows, D), D rounded up to `STEP`; zeros in places of items that have no row there, and in place of rows
            that were not finite.
        norms: (rows,) float32, NaN where a row was not finite.
        powers: (rows,) float32, by what rows were multiplied that are to be divided by their length.
        own: (rows,) float32, what rows of queries get of themselves, negative: of gradients alone.
        items: (items, 4) int32, first row, number of rows, of contexts flags, see `pooling.NOT_FINITE`, and the first row
            among the caller's, if these are packed.
    """

    rows: Tensor
    norms: Tensor
    powers: Tensor
    self_gradients: Tensor
    items: Tensor


class Numbers(NamedTuple):
    """Options that kernels are not compiled for."""

    slope: float
    lambda_softmax: float
    lambda_lse: float
    empty_score: float


class AttentionKind(NamedTuple):
    """What kernels of pairs are compiled for.

    Attributes:
        CLIPS, NORM, NORMALIZE, POOLING: options; NORM is raw_feature_norm without the clip.
        SHIFTED: whether the greatest logit is taken out.
        LISTED: whether pairs are listed.
        LONG, WIDE: whether items of queries may take several tiles, those of contexts several blocks.
        SAVE: whether gradients are to follow.
        LAST: whether a pass over long queries' gradients is the last.
        G, N: items and rows of a tile of queries.
        D: of packed rows; WIDTH the power of two that holds it.
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
    LAST: bool
    G: int
    D: int
    WIDTH: int
    N: int
    C: int
    K: int
    MAIN: str
    FINE: str


class RowKind(NamedTuple):
    """What kernels that pack a side's rows, or store their gradients, are compiled for.

    Attributes:
        QUERIES: whether they are queries.
        PACKED, MASKED: how the side lies.
        LISTED, NORMALIZE: of the call.
        UNIT: elements that its strides are counted in.
        DIM, D: of its rows, and packed.
        WIDTH, ROWS: columns, at least D, and rows of a program.
    """

    QUERIES: bool
    PACKED: bool
    MASKED: bool
    LISTED: bool
    NORMALIZE: bool
    UNIT: int
    DIM: int
    D: int
    WIDTH: int
    ROWS: int


class RowKinds(NamedTuple):
    """What kernels of both sides' rows are compiled for."""

    CONTEXTS: RowKind
    QUERIES: RowKind


class Source(NamedTuple):
    """Where a side's rows lie, and which of them a part takes: items from `first` on, or of listed pairs a column.

    Attributes:
        item_stride, row_stride: elements, counted in UNIT; the first is 0 of packed rows.
        most: rows that an item has at most.
        has_lengths: whether lengths of padded items are.
        slots: rows that each item takes when packed; 0 where they follow one another.
        n_items: of the part.
        surplus: rows of zeros behind the last item's, which one more program stores.
    """

    item_stride: int
    row_stride: int
    first: int
    most: int
    has_lengths: int
    slots: int
    column: int
    n_items: int
    surplus: int


class Target(NamedTuple):
    """A side and what a part of it is packed into; `starts` tells where items begin, where they have no slots."""

    features: Tensor
    places: Tensor
    packed: Packed
    starts: Tensor
    source: Source


class AttentionSpec:
    """What calls are alike in whatever their lengths: options, and how features lie.

    What kernels are compiled for follows from it alone, never from lengths or how many items there are: no batch of a
    training compiles what the first one did not.

    Attributes:
        numbers: of the scores' options.
        order: of images and captions as contexts and queries, and back: 1 or -1, a slice's step.
        device, dtype: of the features.
        dim: D of packed rows.
        kinds: of kernels of rows of contexts, of queries.
        strides: of their items and rows, counted in UNIT.
        has_lengths: whether their lengths are.
        columns: of their items in pairs.
        key_of_rows: what packing depends on beside its kinds; `key` what other kernels do.
        kind: of kernels of pairs.
    """

    def __init__(
        self, features: tuple[torch.device, torch.dtype, int], precise: tuple[str, str], listed: bool,
        layouts: tuple[Any, Any], empty: float | None, codes: tuple[Any, ...],
    ) -> None:  # fmt: skip
        own = ScanOptions.of_codes(*codes)
        self.numbers = Numbers(own.clip_slope, own.lambda_softmax, own.lambda_lse, float(empty or 0.0))
        self.order = 1 if own.direction == "t2i" else -1
        self.columns = (0, 1)[:: self.order]
        self.device, self.dtype, dim = features
        self.dim = -(-dim // STEP.value) * STEP.value
        self.key = self.device, self.dtype
        columns = slots_for(self.dim)
        of_rows = listed, own.normalize
        sizes = dim, self.dim, columns, max(1, Attention.PACKED_ELEMENTS // columns)
        sides = [
            (RowLayout.of(layout[0], layout[1], self.dtype.itemsize), *layout) for layout in layouts[:: self.order]
        ]
        self.kinds = RowKinds(
            *(RowKind(queries, len(strides) == 2, masked, *of_rows, rows.unit, *sizes)
              for queries, (rows, strides, _, _, masked, _) in zip((False, True), sides, strict=True))
        )  # fmt: skip
        self.strides = [(rows.item_stride // rows.unit, rows.row_stride // rows.unit) for rows, *_ in sides]
        self.key_of_rows = self.key, *((rows.far, rows.aligned) for rows, *_ in sides)
        self.has_lengths = [has_lengths for *_, has_lengths, _, _ in sides]

        contexts, queries = (layout[-1] for layout in layouts[:: self.order])
        main, fine = precise
        block = min(Attention.BLOCK, slots_for(contexts))
        wide = contexts > block
        most = Attention.tile(shared_memory(self.device), main == "ieee", wide)
        long = queries > most
        tile = min(most, slots_for(queries)) if listed else most
        full = LEAST if listed or long else 2 * tile // power_from(queries)
        free = own.norm != "none" and abs(own.lambda_softmax) <= LARGEST_FREE_LOGIT
        step = Attention.step(self.dtype.itemsize, tf32=main == "tf32")
        self.kind = AttentionKind(
            own.clips, own.norm, not free, own.normalize, own.pooling, listed, long, wide, False, False,
            min(Attention.MOST_ITEMS, max(LEAST, full)), self.dim, columns, tile, block, step, main, fine,
        )  # fmt: skip


spec_of = lru_cache(256)(AttentionSpec)
# Of a named tuple's fields others are seldom new.
replaced = lru_cache(256)(lambda kind, **fields: kind._replace(**fields))


def _layout(side: Side) -> tuple[Any, ...]:
    """How a side lies: strides, offset from a multiple of 16 bytes, whether lengths are has_lengths, a mask; its width."""
    features = side.features
    has_lengths, masked = side.extents is not None, side.places is not None
    return features.stride(), features.data_ptr() % 16, has_lengths, masked, side.width


class AttentionCall:
    """One call.

    Attributes:
        spec: of its options and layouts.
        sides: contexts and queries; `places` theirs as kernels take them, anything where there are none.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        shape: of the scores.
        filled: whether both sides have room for rows at all.
    """

    def __init__(self, *arguments: Any, packed: bool = False) -> None:
        """From what the operation `crossret::scan_scores_triton` takes; whether its rows are packed already."""
        masked = any(arguments[own] is not None for own in (3, 7))  # which tells where gradients lie, too
        images, captions = both_sides(arguments, arguments[9] is not None, read=masked or not packed)
        features, pairs = images.features, arguments[8]
        given, listed = (features.device, features.dtype, features.shape[-1]), pairs is not None
        layouts = _layout(images), _layout(captions)
        precise = precisions(features.dtype, arguments[10])
        self.spec = spec = spec_of(given, precise, listed, layouts, arguments[9], arguments[11:])
        self.pairs: Tensor | None = pairs.contiguous() if listed else None
        self.sides = (images, captions)[:: spec.order]
        self.places = [no_lengths(spec.device) if side.places is None else side.places for side in self.sides]
        self.shape = (pairs.size(0),) if listed else (images.n_items, captions.n_items)
        self.filled = images.slots > 0 and captions.slots > 0

    def pack(
        self, *parts: PackedPart, workspace: Sequence[Tensor] = (), starts: Sequence[Tensor | None] = (None, None)
    ) -> list[Packed]:  # fmt: skip
        """Rows of parts, at most one of either side, packed, in memory of their `workspace` one after another.

        `starts` as of `LengthPlan`.
        """
        spec = self.spec
        workspace = workspace or memory(spec.device, [size for part in parts for size in part.workspace])
        made = [part.packed_in(*workspace[5 * place : 5 * place + 5]) for place, part in enumerate(parts)]
        # A side without a part has no items; its strides are of as many bits as ever.
        packed, sources = [made[0]] * 2, [Source(*map(encoded, (*strides, *(0,) * 7))) for strides in spec.strides]
        for part, own in zip(parts, made, strict=True):
            packed[part.own], sources[part.own] = own, part.source
        targets = [
            Target(side.features, places, own, own.items if start is None else start, source)
            for side, places, own, start, source in zip(self.sides, self.places, packed, starts, sources, strict=True)
        ]
        extents = (no_lengths(spec.device) if side.extents is None else side.extents for side in self.sides)
        pairs = made[0].items if self.pairs is None else self.pairs
        grid = sum(part.n_items + (part.surplus > 0) for part in parts), max(part.blocks for part in parts), 1
        launch(pack_rows, grid, (*extents, pairs, *targets), spec.kinds, spec.key_of_rows)
        return made


def memory(device: torch.device, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Float32 of these sizes, in one piece."""
    return torch.empty(sum(sizes), device=device).split_with_sizes(sizes)


@cache
def no_lengths(device: torch.device) -> Tensor:
    """In place of lengths that are not has_lengths: kernels are compiled for what they would be."""
    return torch.zeros(1, dtype=torch.int64, device=device)


class PackedPart:
    """A part of a side as it is packed: items, or of listed pairs their items; all but its memory.

    Attributes:
        own: whether of contexts (0) or queries (1).
        first, n_items: items.
        n_rows: packed rows, at least 1, as kernels read one even of empty items; `filled` tells whether there are any.
        surplus: how many of them, behind the last item's, are zeros.
        longest: rows of an item, at most.
        slots: rows that each item takes, or 0: then they follow one another, as the lengths that a plan knows tell.
        tiles: of queries the first tile of the plan, and how many.
        workspace: numbers of four bytes that its rows, norms, powers, own and items take.
        blocks: of ROWS rows of an item, or of the surplus; `source` of the kernel that packs it.
    """

    def __init__(
        self, spec: AttentionSpec, own: int, first: int, n_items: int, n_rows: int, longest: int, slots: int, most: int,
        tiles: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """`most` is the side's `slots`."""
        self.spec, self.own, self.first, self.n_items, self.tiles = spec, own, first, n_items, tiles
        self.filled, self.longest, self.slots, self.most = n_rows > 0, longest, slots, most
        self.n_rows = max(n_rows, 1)
        if own == 0 and not spec.kind.LISTED:
            self.n_rows = rounded(self.n_rows, PITCH)
        self.surplus = self.n_rows - n_rows
        of_rows = self.n_rows * spec.dim * spec.dtype.itemsize // 4
        self.workspace = [of_rows, *[rounded(self.n_rows, 4)] * 3, 4 * n_items]
        self.kind = spec.kinds[own]
        self.blocks = -(-max(rounded(longest, TOGETHER.value), self.surplus) // self.kind.ROWS)
        of_items = first, most, spec.has_lengths[own], slots, spec.columns[own], n_items, self.surplus
        self.source = Source(*map(encoded, (*spec.strides[own], *of_items)))

    @classmethod
    def slotted(cls, spec: AttentionSpec, own: int, first: int, n_items: int, longest: int) -> PackedPart:
        """Whose items have up to so many rows, and take as many each; contexts of listed pairs as S has of them."""
        slots = longest if own else rounded(longest, PITCH if spec.kind.LISTED else TOGETHER.value)
        return cls(spec, own, first, n_items, n_items * slots, slots, slots, longest)

    def packed_in(self, rows: Tensor, norms: Tensor, powers: Tensor, self_gradients: Tensor, items: Tensor) -> Packed:
        """What lies in memory of these sizes, float32."""
        return Packed(rows.view(self.spec.dtype).view(self.n_rows, -1), norms, powers, self_gradients, items.view(torch.int32))


def rounded(count: Any, unit: int) -> Any:
    """The next multiple."""
    return -(-count // unit) * unit


@triton.jit(
    do_not_specialize=["contexts", "queries"],
    do_not_specialize_on_alignment=["context_extents", "query_extents", "pairs"],
)
def pack_rows(context_extents, query_extents, pairs, contexts, queries, KIND: tl.constexpr):
    """Copies rows of items into a part of either side, contexts' first."""
    number = tl.program_id(0)
    n = decoded(contexts.source.n_items) + tl.minimum(decoded(contexts.source.surplus), 1)
    CONTEXTS: tl.constexpr = KIND.CONTEXTS  # names: Triton 3.6 hands on no field that is a tuple
    QUERIES: tl.constexpr = KIND.QUERIES
    if number < n:
        pack_item(context_extents, pairs, contexts, number, CONTEXTS)
    else:
        pack_item(query_extents, pairs, queries, number - n, QUERIES)


@triton.jit
def pack_item(extents, pairs, target, number, KIND: tl.constexpr):
    """Copies ROWS rows of an item, with their lengths; zeros and NaN of rows that are not finite.

    Rows that are to be divided by their length get one in [1, 2) by a power of two first, which rounds nothing. Behind
    the last item stands the surplus, zeros.
    """
    ROWS: tl.constexpr = KIND.ROWS
    D: tl.constexpr = KIND.D
    packed = target.packed
    source = target.source
    slots = decoded(source.slots)
    is_item = number < decoded(source.n_items)
    if KIND.LISTED:
        item = tl.load(pairs + 2 * (decoded(source.first) + number.to(tl.int64)) + decoded(source.column))
    else:
        item = (decoded(source.first) + tl.minimum(number, decoded(source.n_items) - 1)).to(tl.int64)
    first = number * slots
    if slots == 0:
        starts = target.starts + decoded(source.first)
        first = tl.load(starts + number) - tl.load(starts)
    begin = tl.full((), 0, tl.int64)
    count = begin + decoded(source.most)
    if KIND.PACKED:
        begin = tl.load(extents + item)
        count = tl.minimum(tl.load(extents + item + 1) - begin, count)
    elif decoded(source.has_lengths) > 0:
        count = tl.minimum(tl.load(extents + item), count)
    count = tl.where(is_item, tl.maximum(count, 0), 0).to(tl.int32)
    slots = tl.where(is_item, slots, decoded(source.surplus))
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = r < count
    if is_item & (tl.program_id(1) == 0):
        tl.store(packed.items + 4 * number, first)
        tl.store(packed.items + 4 * number + 1, count)
        tl.store(packed.items + 4 * number + 3, begin.to(tl.int32))
    place = r.to(tl.int64)
    if KIND.MASKED:
        place = tl.load(target.places + item * decoded(source.most) + r, mask=there, other=0)
    offsets = ((begin + place) * decoded(source.row_stride) + item * decoded(source.item_stride)) * KIND.UNIT
    d = tl.arange(0, KIND.WIDTH)
    x = tl.load(
        target.features + offsets[:, None] + d[None, :], mask=there[:, None] & (d < KIND.DIM)[None, :], other=0.0
    )
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
    taken = count if KIND.QUERIES else (count + TOGETHER - 1) // TOGETHER * TOGETHER
    kept = r < tl.maximum(slots, taken)
    cells = packed.rows + (first + r).to(tl.int64)[:, None] * D + d[None, :]
    tl.store(cells, x.to(packed.rows.dtype.element_ty), mask=kept[:, None] & (d < D)[None, :])
    tl.store(packed.norms + first + r, tl.where(fine, norms, float("nan")), mask=kept)
