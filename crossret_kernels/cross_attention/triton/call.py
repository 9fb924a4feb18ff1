"""A call of stacked cross attention in Triton: sides, options, and the parts of a side that are packed together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.cross_attention.triton.packing import (
    STEP,
    TOGETHER,
    Packed,
    RowKind,
    RowKinds,
    Source,
    Target,
    pack_rows,
    rounded,
)
from crossret_kernels.gpu.sides import RowLayout, Side, both_sides, power_from, precisions, shared_memory
from crossret_kernels.gpu.triton_launch import encoded, launch
from crossret_kernels.gpu.tuning import LEAST, Attention, slots_for

LARGEST_FREE_LOGIT = 20.0  # |λn| up to which logits need no shift: exp(±20) squared keeps its digits in float32
PITCH = 16  # multiple of the rows of a part of contexts: products then take wide loads


class Numbers(NamedTuple):
    """Options that are arguments of kernels, not compile-time constants."""

    slope: float
    lambda_softmax: float  # 1 for "minmax"
    lambda_lse: float
    empty_score: float
    threshold: float  # below 0: 1 / C


class AttentionKind(NamedTuple):
    """Compile-time constants of the kernels of pairs.

    Attributes:
        CLIPS, NORM, NORMALIZE, POOLING: options; NORM is raw_feature_norm without the clip, "none" for "minmax".
        SPREAD, PROJECTS, FOCAL: raw_feature_norm "minmax"; relevance "projection"; option.
        SHIFTED: greatest logits are found, which all but "minmax" subtract.
        LISTED: listed pairs.
        LONG, WIDE: items of queries in several tiles, items of contexts in several blocks.
        SAVE: storage of what gradients need.
        LAST: last pass over the gradients of long queries.
        G, N: items and rows of a tile of queries.
        D: columns of packed rows; WIDTH: the power of two that holds them.
        C, K: contexts of a block, columns of a step.
        MAIN, FINE: precision of products of features, and of later products.
    """

    CLIPS: bool
    NORM: str
    SPREAD: bool
    PROJECTS: bool
    FOCAL: bool
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


class AttentionSpec:
    """Everything about a call but lengths and numbers of items: options, dtype, layouts.

    Compile-time constants follow from it alone, so that no batch of a training compiles kernels that the first did not.

    Attributes:
        numbers: options of scores.
        order: step of a slice that turns images and captions into contexts and queries: 1, or −1, which swaps them.
        device, dtype: of the features.
        dim: D of packed rows.
        kinds: constants of the kernels that pack, of either side.
        strides: of items and rows in UNIT elements, of either side.
        has_lengths: presence of lengths, of either side.
        columns: of the items in pairs, of either side.
        key_of_rows, key: what the compiled kernels that pack, and all others, depend on besides constants.
        kind: constants of the kernels of pairs.
        planes: values kept of each row of queries and item of contexts: relevance, four for gradients, one of focal
            weights, one of "minmax".
    """

    def __init__(
        self, features: tuple[torch.device, torch.dtype, int], precise: tuple[str, str], listed: bool,
        layouts: tuple[Any, Any], empty: float | None, codes: tuple[Any, ...],
    ) -> None:  # fmt: skip
        options = ScanOptions.of_codes(*codes)
        spread, threshold = options.norm == "minmax", -1.0 if options.threshold is None else options.threshold
        factor = 1.0 if spread else options.inverse_temperature
        self.numbers = Numbers(options.clip_slope, factor, options.lambda_lse, float(empty or 0.0), threshold)
        self.order = 1 if options.direction == "t2i" else -1
        self.columns = (0, 1)[:: self.order]
        self.device, self.dtype, dim = features
        self.dim = -(-dim // STEP.value) * STEP.value
        self.key = self.device, self.dtype
        columns = slots_for(self.dim)
        row_options = listed, options.normalize
        sizes = dim, self.dim, columns, max(1, Attention.PACKED_ELEMENTS // columns)
        sides = [
            (RowLayout.of(layout[0], layout[1], self.dtype.itemsize), *layout) for layout in layouts[:: self.order]
        ]
        self.kinds = RowKinds(
            *(RowKind(queries, len(strides) == 2, masked, *row_options, rows.unit, *sizes)
              for queries, (rows, strides, _, _, masked, _) in zip((False, True), sides, strict=True))
        )  # fmt: skip
        self.strides = [(rows.item_stride // rows.unit, rows.row_stride // rows.unit) for rows, *_ in sides]
        self.key_of_rows = self.key, *((rows.far, rows.aligned) for rows, *_ in sides)
        self.has_lengths = [has_lengths for *_, has_lengths, _, _ in sides]

        contexts, queries = (layout[-1] for layout in layouts[:: self.order])
        main, fine = precise
        block = min(Attention.BLOCK, slots_for(contexts))
        wide = contexts > block
        largest = Attention.tile(shared_memory(self.device), main == "ieee", wide)
        long = queries > largest
        tile = min(largest, slots_for(queries)) if listed else largest
        full = LEAST if listed or long else 2 * tile // power_from(queries)
        norm = "none" if spread else options.norm
        free = norm != "none" and abs(options.inverse_temperature) <= LARGEST_FREE_LOGIT
        step = Attention.step(self.dtype.itemsize, tf32=main == "tf32")
        self.kind = AttentionKind(
            options.clips, norm, spread, options.relevance == "projection", options.focal, not free, options.normalize,
            options.pooling, listed, long, wide, False, False, min(Attention.MOST_ITEMS, max(LEAST, full)), self.dim,
            columns, tile, block, step, main, fine,
        )  # fmt: skip
        self.planes = 7 if spread else 6 if options.focal else 5


spec_of = lru_cache(256)(AttentionSpec)
# A cached `_replace`: few combinations occur.
replaced = lru_cache(256)(lambda kind, **fields: kind._replace(**fields))


def _layout(side: Side) -> tuple[Any, ...]:
    """Layout of a side: strides, bytes from a multiple of 16, presence of lengths and of a mask, width."""
    features = side.features
    has_lengths, masked = side.extents is not None, side.places is not None
    return features.stride(), features.data_ptr() % 16, has_lengths, masked, side.width


class AttentionCall:
    """A call of `crossret::scan_scores_triton`.

    Attributes:
        spec: its options and layouts.
        sides: contexts and queries.
        places: rows that masks keep, of either side; any tensor where there is no mask.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        shape: of the scores.
        filled: False where a side has no room for rows.
    """

    def __init__(self, *arguments: Any, packed: bool = False) -> None:
        """`packed`: the forward pass has packed the rows already, so that lengths on the host need not reach the
        device.
        """
        masked = any(arguments[i] is not None for i in (3, 7))  # a mask is needed for the gradients' places, too
        images, captions = both_sides(arguments, arguments[9] is not None, read=masked or not packed)
        features, pairs = images.features, arguments[8]
        feature_spec, listed = (features.device, features.dtype, features.shape[-1]), pairs is not None
        layouts = _layout(images), _layout(captions)
        precise = precisions(features.dtype, arguments[10])
        self.spec = spec = spec_of(feature_spec, precise, listed, layouts, arguments[9], arguments[11:])
        self.pairs: Tensor | None = pairs.contiguous() if listed else None
        self.sides = (images, captions)[:: spec.order]
        self.places = [no_lengths(spec.device) if side.places is None else side.places for side in self.sides]
        self.shape = (pairs.size(0),) if listed else (images.n_items, captions.n_items)
        self.filled = images.slots > 0 and captions.slots > 0

    def pack(
        self, *parts: PackedPart, workspace: Sequence[Tensor] = (), starts: Sequence[Tensor | None] = (None, None)
    ) -> list[Packed]:  # fmt: skip
        """Packs at most one part of either side, in `workspace` or fresh memory; `starts` is that of a `LengthPlan`."""
        spec = self.spec
        workspace = workspace or memory(spec.device, [size for part in parts for size in part.workspace])
        results = [part.packed_in(*workspace[5 * place : 5 * place + 5]) for place, part in enumerate(parts)]
        # A side without a part has no items, and strides of the usual width: no kernel is compiled for it.
        packed, sources = [results[0]] * 2, [Source(*map(encoded, (*strides, *(0,) * 7))) for strides in spec.strides]
        for part, rows in zip(parts, results, strict=True):
            packed[part.side], sources[part.side] = rows, part.source
        targets = [
            Target(side.features, places, rows, rows.items if start is None else start, source)
            for side, places, rows, start, source in zip(self.sides, self.places, packed, starts, sources, strict=True)
        ]
        extents = (no_lengths(spec.device) if side.extents is None else side.extents for side in self.sides)
        pairs = results[0].items if self.pairs is None else self.pairs
        grid = sum(part.n_items + (part.surplus > 0) for part in parts), max(part.blocks for part in parts), 1
        launch(pack_rows, grid, (*extents, pairs, *targets), spec.kinds, spec.key_of_rows)
        return results


def memory(device: torch.device, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Float32 tensors of these sizes in one allocation."""
    return torch.empty(sum(sizes), device=device).split_with_sizes(sizes)


@cache
def no_lengths(device: torch.device) -> Tensor:
    """A tensor in place of absent lengths, of their dtype, so that compiled kernels are the same."""
    return torch.zeros(1, dtype=torch.int64, device=device)


class PackedPart:
    """Some items of one side, or one side of some listed pairs, as they are packed.

    Attributes:
        side: contexts (0) or queries (1).
        first, n_items: items.
        n_rows: packed rows, at least 1, as kernels read a row of empty items, too; `filled` is False where there are
            none.
        surplus: rows of zeros behind the last item.
        longest: maximal rows of an item.
        slots: rows of an item's slot, or 0 where rows follow one another by a plan's lengths.
        tiles: first tile of queries in the plan, and their number.
        workspace: sizes of its rows, norms, powers, self gradients and items, in units of four bytes.
        blocks: programs of ROWS rows that an item, or the surplus, takes.
        source: its layout for the kernel that packs it.
    """

    def __init__(
        self, spec: AttentionSpec, side: int, first: int, n_items: int, n_rows: int, longest: int, slots: int,
        most: int, tiles: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """`most` is the side's `slots`."""
        self.spec, self.side, self.first, self.n_items, self.tiles = spec, side, first, n_items, tiles
        self.filled, self.longest, self.slots, self.most = n_rows > 0, longest, slots, most
        self.n_rows = max(n_rows, 1)
        if side == 0 and not spec.kind.LISTED:
            self.n_rows = rounded(self.n_rows, PITCH)
        self.surplus = self.n_rows - n_rows
        row_size = self.n_rows * spec.dim * spec.dtype.itemsize // 4
        self.workspace = [row_size, *[rounded(self.n_rows, 4)] * 3, 4 * n_items]
        self.kind = spec.kinds[side]
        self.blocks = -(-max(rounded(longest, TOGETHER.value), self.surplus) // self.kind.ROWS)
        item_numbers = first, most, spec.has_lengths[side], slots, spec.columns[side], n_items, self.surplus
        self.source = Source(*map(encoded, (*spec.strides[side], *item_numbers)))

    @classmethod
    def slotted(cls, spec: AttentionSpec, side: int, first: int, n_items: int, longest: int) -> PackedPart:
        """A part whose items take `longest` rows each, padding included; contexts of listed pairs fill whole pitches of
        S.
        """
        slots = longest if side else rounded(longest, PITCH if spec.kind.LISTED else TOGETHER.value)
        return cls(spec, side, first, n_items, n_items * slots, slots, slots, longest)

    def packed_in(self, rows: Tensor, norms: Tensor, powers: Tensor, self_gradients: Tensor, items: Tensor) -> Packed:
        """The part in memory of its `workspace` sizes, float32."""
        return Packed(
            rows.view(self.spec.dtype).view(self.n_rows, -1), norms, powers, self_gradients, items.view(torch.int32)
        )
