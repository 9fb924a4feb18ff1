"""Gradients of features in Triton: what their packed rows have summed up, stored where the rows lie."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import int64, item_of, zero_nan
from crossret_kernels.cross_attention.triton.call import AttentionCall, Packed, PackedPart, Source
from crossret_kernels.cross_attention.triton.chunks import gram_pitch_of, multiply
from crossret_kernels.cross_attention.triton.relevances import TINY
from crossret_kernels.gpu.triton_launch import encoded, launch
from crossret_kernels.gpu.triton_tiles import decoded, inverse

NOWHERE = Source(*map(encoded, (0,) * len(Source._fields)))


class KernelSums(NamedTuple):
    """`FeatureSums` as kernels read them, and where gradients of their rows lie.

    Attributes:
        items, order, ends: of listed pairs, by number: the item, sorted; the pairs in this order; where an item's end.
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
    """Gradients of a packed part of one side, summed up in float32.

    Attributes:
        call, part, packed: its rows.
        out: where their gradients are to lie.
        grams: of contexts ∂L/∂G + its transpose of every item, (items, pitch, pitch).
        total: of rows but for what grams and `packed.self_gradients` bring, (rows, D).
        later: whether a run has left something there.
    """

    def __init__(
        self, call: AttentionCall, part: PackedPart, packed: Packed, out: Tensor, grams: Tensor, total: Tensor
    ) -> None:
        self.call, self.part, self.packed, self.out, self.grams, self.total = call, part, packed, out, grams, total
        self.later = False

    @staticmethod
    def workspace_of(part: PackedPart) -> list[int]:
        """Numbers of grams and total."""
        grams = 16 if part.own else part.n_items * gram_pitch_of(part.longest, part.spec) ** 2
        return [grams, part.n_rows * part.spec.dim]

    def add(self, left: Tensor, right: Tensor) -> None:
        """Adds a product of a run to the total."""
        total = self.total.view(*left.shape[:-1], right.size(-1))
        product = torch.empty_like(total) if self.later else total
        multiply(left, right.to(left.dtype), product)
        if self.later:
            total.add_(product)
        self.later = True

    def stored(self) -> KernelSums:
        """As kernels have it; of listed pairs all of an item at once, in the order of the list."""
        call, part, strides = self.call, self.part, self.out.stride()
        items = order = ends = self.packed.items
        if call.pairs is not None:
            pairs = call.pairs[part.first : part.first + part.n_items, call.spec.columns[part.own]]
            items, order = pairs.sort(stable=True)
            ends = torch.searchsorted(items, items, right=True)
        item_stride, pitch = 0 if part.kind.PACKED else strides[0], encoded(gram_pitch_of(part.longest, part.spec))
        source = item_stride, strides[-2], part.first, part.most, 0, part.slots, 0, part.n_items, 0
        places, lies = call.places[part.own], Source(*map(encoded, source))
        return KernelSums(self.out, places, items, order, ends, self.packed, self.total, self.grams, pitch, lies)


def store(*sums: FeatureSums) -> None:
    """FeatureSums of parts as gradients where their rows lie, at most one of either side; of those that runs have left."""
    sums = tuple(own for own in sums if own.later)
    if not sums:
        return
    spec, made = sums[0].call.spec, [own.stored() for own in sums]
    summed = [made[0]._replace(source=NOWHERE)] * 2
    for own, of_own in zip(sums, made, strict=True):
        summed[own.part.own] = of_own
    # Of either side, as one may be summed up in float32; hidden strides may take more than 32 bits.
    outs = [(own.out.dtype, own.out.stride(0) >= 2**30 - 2 and own.source is not NOWHERE) for own in summed]
    grid = sum(own.part.n_items for own in sums), max(own.part.blocks for own in sums), 1
    launch(store_gradients, grid, (*summed,), spec.kinds, (spec.key, *outs))


@triton.jit
def add_gram_products(total, summed, item, first, count, place, KIND: tl.constexpr):
    """Adds (∂L/∂G + its transpose) C to these rows of an item of contexts."""
    d = tl.arange(0, KIND.WIDTH)
    pitch = decoded(summed.gram_pitch)
    for c in range(0, count):
        of_grams = tl.load(summed.grams + (int64(item) * pitch + c) * pitch + place, mask=place < count, other=0.0)
        rows = summed.packed.rows + int64(first + c) * KIND.D + d
        total += of_grams[:, None] * tl.load(rows, mask=d < KIND.D, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def of_features(total, own, packed, rows, there, KIND: tl.constexpr):
    """(ROWS, WIDTH) gradients of rows from what their packed ones have summed up, of themselves too."""
    d = tl.arange(0, KIND.WIDTH)
    cells = packed.rows + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
    x = tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0).to(tl.float32)
    norms = zero_nan(tl.load(packed.norms + rows, mask=there, other=0.0))
    if KIND.NORMALIZE:
        x = x * inverse(norms)[:, None]
        total = total - tl.sum(total * x, 1)[:, None] * x
        return total * tl.load(packed.powers + rows, mask=there, other=0.0)[:, None]
    if KIND.QUERIES:
        shares = 1.0 / tl.maximum(norms, TINY)  # twice: the square itself may be out of range
        total += (own * shares)[:, None] * (x * shares[:, None])
    return total


@triton.jit(do_not_specialize=["contexts", "queries"])
def store_gradients(contexts, queries, KIND: tl.constexpr):
    """FeatureSums of a part of either side, contexts' first, as the gradients of their items."""
    number = tl.program_id(0)
    n = decoded(contexts.source.n_items)
    CONTEXTS: tl.constexpr = KIND.CONTEXTS
    QUERIES: tl.constexpr = KIND.QUERIES
    if number < n:
        store_item(contexts, number, CONTEXTS)
    else:
        store_item(queries, number - n, QUERIES)


@triton.jit
def store_item(summed, number, KIND: tl.constexpr):
    """Gradients of ROWS rows of an item, where they lie, and zeros in what other slots it has.

    Of listed pairs the sums of all of an item's are added to what is there, by its first one.
    """
    packed = summed.packed
    source = summed.source
    item = int64(decoded(source.first) + number)
    own = number
    end = number + 1
    if KIND.LISTED:
        item = tl.load(summed.items + number)
        own = tl.load(summed.order + number).to(tl.int32)
        first_pair = (number == 0) | (tl.load(summed.items + tl.maximum(number - 1, 0)) != item)
        end = tl.where(first_pair, tl.load(summed.ends + number).to(tl.int32), number)
    if end > number:
        own_first, count = item_of(packed, own)
        place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)
        there = place < count
        d = tl.arange(0, KIND.WIDTH)
        total = tl.full((KIND.ROWS, KIND.WIDTH), 0, tl.float32)
        along = tl.full((KIND.ROWS,), 0, tl.float32)
        for other in range(number, end):
            pair = tl.load(summed.order + other).to(tl.int32) if KIND.LISTED else other
            first, _count = item_of(packed, pair)
            rows = first + place
            cells = summed.total + rows.to(tl.int64)[:, None] * KIND.D + d[None, :]
            total += tl.load(cells, mask=there[:, None] & (d < KIND.D)[None, :], other=0.0)
            if KIND.QUERIES:
                along += tl.load(packed.self_gradients + rows, mask=there, other=0.0)
            else:
                total = add_gram_products(total, summed, pair, first, count, place, KIND)
        total = of_features(total, along, packed, own_first + place, there, KIND)
        given = 0 if KIND.PACKED or KIND.LISTED else tl.minimum(decoded(source.slots), decoded(source.most))
        stored = place < tl.maximum(count, given)
        begin = tl.load(packed.items + 4 * own + 3).to(tl.int64)
        if KIND.MASKED:
            place = tl.load(summed.places + item * decoded(source.most) + place, mask=stored, other=0)
        offsets = (begin + place) * decoded(source.row_stride) + item * decoded(source.item_stride)
        found = summed.out + offsets[:, None] + d[None, :]
        inside = stored[:, None] & (d < KIND.DIM)[None, :]
        if KIND.LISTED:
            total += tl.load(found, mask=inside, other=0.0).to(tl.float32)
        tl.store(found, total.to(summed.out.dtype.element_ty), mask=inside)
