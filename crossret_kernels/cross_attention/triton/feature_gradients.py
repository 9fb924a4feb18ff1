"""Gradients of features in Triton: sums over packed rows, stored in the features' layout."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import TINY, int64, item_of, zero_nan
from crossret_kernels.cross_attention.triton.call import AttentionCall, PackedPart
from crossret_kernels.cross_attention.triton.chunks import gram_pitch_of, multiply
from crossret_kernels.cross_attention.triton.packing import Packed, Source
from crossret_kernels.gpu.triton_launch import encoded, launch
from crossret_kernels.gpu.triton_tiles import decoded, inverse

NOWHERE = Source(*map(encoded, (0,) * len(Source._fields)))


class KernelSums(NamedTuple):
    """`FeatureSums` as kernels read them.

    Attributes:
        out: gradients of the features.
        places: rows that a mask keeps.
        items, order, ends: of listed pairs, sorted by item: the item, the pair, the end of the item's pairs.
        source: layout of `out`.
    """

    out: Tensor
    places: Tensor
    items: Tensor
    order: Tensor
    ends: Tensor
    packed: Packed
    total: Tensor
    grams: Tensor
    gram_pitch: int
    source: Source


class FeatureSums:
    """Gradients of a part of one side, summed over runs in float32.

    Attributes:
        call, part, packed: rows of the part.
        out: gradients of the features.
        grams: ∂L/∂G plus its transpose of each item of contexts, (items, pitch, pitch).
        total: sums of rows without the parts of `grams` and `packed.self_gradients`, (rows, D).
        later: True where an earlier run has stored sums.
    """

    def __init__(
        self, call: AttentionCall, part: PackedPart, packed: Packed, out: Tensor, grams: Tensor, total: Tensor
    ) -> None:
        self.call, self.part, self.packed, self.out, self.grams, self.total = call, part, packed, out, grams, total
        self.later = False

    @staticmethod
    def workspace_of(part: PackedPart) -> list[int]:
        """Sizes of `grams` and `total`."""
        grams = 16 if part.side else part.n_items * gram_pitch_of(part.longest, part.spec) ** 2
        return [grams, part.n_rows * part.spec.dim]

    def add(self, left: Tensor, right: Tensor) -> None:
        """Adds the product of a run to `total`."""
        total = self.total.view(*left.shape[:-1], right.size(-1))
        product = torch.empty_like(total) if self.later else total
        multiply(left, right.to(left.dtype), product)
        if self.later:
            total.add_(product)
        self.later = True

    def stored(self) -> KernelSums:
        """The sums as kernels read them; pairs are sorted by item, so that one program adds up all pairs of an item."""
        call, part, strides = self.call, self.part, self.out.stride()
        items = order = ends = self.packed.items
        if call.pairs is not None:
            pairs = call.pairs[part.first : part.first + part.n_items, call.spec.columns[part.side]]
            items, order = pairs.sort(stable=True)
            ends = torch.searchsorted(items, items, right=True)
        item_stride, pitch = 0 if part.kind.PACKED else strides[0], encoded(gram_pitch_of(part.longest, part.spec))
        source = item_stride, strides[-2], part.first, part.most, 0, part.slots, 0, part.n_items, 0
        places, layout = call.places[part.side], Source(*map(encoded, source))
        return KernelSums(self.out, places, items, order, ends, self.packed, self.total, self.grams, pitch, layout)


def store(*sums: FeatureSums) -> None:
    """Stores the sums of at most one part of either side as gradients of features; parts that no run reached are left
    out.
    """
    sums = tuple(entry for entry in sums if entry.later)
    if not sums:
        return
    spec, inputs = sums[0].call.spec, [entry.stored() for entry in sums]
    sides = [inputs[0]._replace(source=NOWHERE)] * 2
    for entry, kernel_sums in zip(sums, inputs, strict=True):
        sides[entry.part.side] = kernel_sums
    # Either side's dtype and width of strides: one may be summed in float32.
    layouts = [(entry.out.dtype, entry.out.stride(0) >= 2**30 - 2 and entry.source is not NOWHERE) for entry in sides]
    grid = sum(entry.part.n_items for entry in sums), max(entry.part.blocks for entry in sums), 1
    launch(store_gradients, grid, (*sides,), spec.kinds, (spec.key, *layouts))


@triton.jit
def add_gram_products(total, sums, item, first, count, place, KIND: tl.constexpr):
    """Adds (∂L/∂G + its transpose) C to the rows of an item of contexts."""
    d = tl.arange(0, KIND.WIDTH)
    pitch = decoded(sums.gram_pitch)
    for c in range(0, count):
        gram_column = tl.load(sums.grams + (int64(item) * pitch + c) * pitch + place, mask=place < count, other=0.0)
        rows = sums.packed.rows + int64(first + c) * KIND.D + d
        total += gram_column[:, None] * tl.load(rows, mask=d < KIND.D, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def row_gradients(total, along, packed, rows, there, KIND: tl.constexpr):
    """Gradients (ROWS, WIDTH) of features from the sums of their packed rows, through the normalisation."""
    d = tl.arange(0, KIND.WIDTH)
    cells = packed.rows + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    x = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0).to(tl.float32)
    norms = zero_nan(tl.load(packed.norms + rows, mask=there, other=0.0))
    if KIND.NORMALIZE:
        x = x * inverse(norms)[:, None]
        total = total - tl.sum(total * x, 1)[:, None] * x
        return total * tl.load(packed.powers + rows, mask=there, other=0.0)[:, None]
    if KIND.QUERIES:
        shares = 1.0 / tl.maximum(norms, TINY)  # applied twice: the square may be out of range
        total += (along * shares)[:, None] * (x * shares[:, None])
    return total


@triton.jit(do_not_specialize=["contexts", "queries"])
def store_gradients(contexts, queries, KIND: tl.constexpr):
    """Stores gradients of a part of either side, contexts first."""
    number = tl.program_id(0)
    n = decoded(contexts.source.n_items)
    CONTEXTS: tl.constexpr = KIND.CONTEXTS
    QUERIES: tl.constexpr = KIND.QUERIES
    if number < n:
        store_item(contexts, number, CONTEXTS)
    else:
        store_item(queries, number - n, QUERIES)


@triton.jit
def store_item(sums, number, KIND: tl.constexpr):
    """Stores gradients of ROWS rows of an item, and zeros in the rest of its slot.

    The first listed pair of an item adds the sums of all its pairs to what is there.
    """
    packed = sums.packed
    source = sums.source
    item = int64(decoded(source.first) + number)
    packed_item = number
    end = number + 1
    if KIND.LISTED:
        item = tl.load(sums.items + number)
        packed_item = tl.load(sums.order + number).to(tl.int32)
        first_pair = (number == 0) | (tl.load(sums.items + tl.maximum(number - 1, 0)) != item)
        end = tl.where(first_pair, tl.load(sums.ends + number).to(tl.int32), number)
    if end > number:
        first_row, count = item_of(packed, packed_item)
        place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)
        there = place < count
        d = tl.arange(0, KIND.WIDTH)
        total = tl.full((KIND.ROWS, KIND.WIDTH), 0, tl.float32)
        along = tl.full((KIND.ROWS,), 0, tl.float32)
        for other in range(number, end):
            pair = tl.load(sums.order + other).to(tl.int32) if KIND.LISTED else other
            first, _count = item_of(packed, pair)
            rows = first + place
            cells = sums.total + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
            total += tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
            if KIND.QUERIES:
                along += tl.load(packed.self_gradients + rows, mask=there, other=0.0)
            else:
                total = add_gram_products(total, sums, pair, first, count, place, KIND)
        total = row_gradients(total, along, packed, first_row + place, there, KIND)
        n_slots = 0 if KIND.PACKED or KIND.LISTED else tl.minimum(decoded(source.slots), decoded(source.most))
        in_slot = place < tl.maximum(count, n_slots)
        begin = tl.load(packed.items + 4 * packed_item + 3).to(tl.int64)
        if KIND.MASKED:
            place = tl.load(sums.places + item * decoded(source.most) + place, mask=in_slot, other=0)
        offsets = (begin + place) * decoded(source.row_stride) + item * decoded(source.item_stride)
        targets = sums.out + offsets[:, None] + d[None, :]
        inside = in_slot[:, None] & (d < KIND.DIM)[None, :]
        if KIND.LISTED:
            total += tl.load(targets, mask=inside, other=0.0).to(tl.float32)
        tl.store(targets, total.to(sums.out.dtype.element_ty), mask=inside)
