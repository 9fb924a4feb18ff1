"""One call of Sum-Max in Triton: the tiles that its kernels search by, where rows lie, and their norms."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import all_hidden, launch
from crossret_kernels.gpu.triton_tiles import inverse, shown
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.calls import Call, Cut


class Kind(NamedTuple):
    """What kernels that look for the best contexts are compiled for.

    Attributes:
        INDEX, VALUES: whether places are stored, and similarities beside them.
        LISTED: whether pairs are.
        CONTEXT_COLUMN: of the contexts' items in pairs.
        POOLING: of scores; "none" where every query's best is asked for.
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


class TritonCall(Call):
    __slots__ = ()
    COUNTS_UNITS = True

    def cut(self, index: bool, gradients: bool, planned: bool) -> Cut:
        """What a thread keeps is to fit it.

        What kernels are compiled for follows from the sides' widths, never from lengths or how many items there are. A
        single item of queries, as a search has, is the exception: it has no others to share a tile with.
        """
        dtype, dim, listed = self.contexts.features.dtype, self.dim, self.pairs is not None
        width, alone = self.queries.width, self.n_queries == 1
        by_items = listed or width > SumMax.LARGEST_TILE
        # Without tensor cores a product's operands lie in registers: steps of D are short, fewer columns kept.
        # Fewer are kept where long items have places too. Scales, masks and places leave the largest tile no room.
        in_registers, wide = self.precision == "ieee", dtype == torch.float32
        resident = dim <= SumMax.LARGEST_RESIDENT and not in_registers
        k = slots_for(dim) if resident else 16 if in_registers else 32 if wide else 64
        small = resident or in_registers
        m = min(slots_for(width), SumMax.LARGEST_TILE) if by_items or alone else SumMax.LARGEST_TILE
        plain = dim % k == 0 and not (small or index or self.normalize)
        if plain and not (by_items or alone):
            fills = [size // max(width, 1) * width / size for size in (SumMax.LARGEST_TILE, SumMax.LARGER_TILE)]
            m = SumMax.LARGER_TILE if fills[0] < SumMax.WELL_FILLED * fills[1] else m
        n = 64 if small or listed else min(SumMax.CELLS // m, 256)
        columns = SumMax.COLUMNS // 2 if in_registers or (index and by_items and not resident) else SumMax.COLUMNS
        kind = Kind(
            index, gradients and self.normalize, listed, self.context_column, self.pooling, self.normalize,
            m, n, min(n, columns), k, resident, dim, self.unit, self.precision, 2 if wide and resident else 3,
        )  # fmt: skip
        return Cut(kind, kind.COLUMNS, n // kind.COLUMNS, 0 if by_items else m)

    def key(self, *others: Hashable) -> Hashable:
        """What kernels depend on besides their kinds."""
        contexts, queries = self.lies
        values = self.contexts.features
        return values.device, values.dtype, contexts.aligned, contexts.far, queries.aligned, queries.far, *others

    def inverse_norms(self, of_contexts: bool) -> Tensor:
        own = 0 if of_contexts else 1
        sizes, features = self.sizes[own], (self.contexts, self.queries)[own].features
        scales = torch.empty(sizes.n_rows, dtype=torch.float32, device=self.device)
        launch(
            inverse_norms, (-(-sizes.n_rows // SumMax.NORM_ROWS), 1, 1), (features, scales, all_hidden(sizes)),
            NormKind(self.dim, self.unit, SumMax.NORM_ROWS, SumMax.NORM_COLUMNS),
            (self.device, features.dtype, self.lies[own].aligned, self.lies[own].far),
        )  # fmt: skip
        return scales


class NormKind(NamedTuple):
    D: int
    UNIT: int
    ROWS: int
    K: int


@triton.jit
def item_rows(side, item, sizes, UNIT: tl.constexpr):
    """(Number of the first row, where that begins among the elements, how many rows) of a side's items.

    Elements are counted in 64 bits. An item without rows has one to be read, which is nobody's or another's.
    """
    slots, most = shown(sizes.slots), shown(sizes.most)
    item = item.to(tl.int64)
    none = item * 0  # masks are of their pointers' shape
    packed, told = none == slots, none < shown(sizes.told)
    start = tl.load(side.extents + item, mask=told, other=0)
    end = tl.load(side.extents + item + 1, mask=packed, other=0)
    count = tl.where(packed, end - start, tl.where(told, start, most))
    count = tl.minimum(tl.maximum(count, 0), most).to(tl.int32)
    before = tl.where(packed, tl.minimum(tl.maximum(start, 0), shown(sizes.n_rows) - 1), 0)
    begin = (item * shown(sizes.item) + before * shown(sizes.row)) * UNIT
    return tl.where(packed, before, item * slots).to(tl.int32), begin, count


@triton.jit(do_not_specialize=["sizes"])
def inverse_norms(features, norms, sizes, KIND: tl.constexpr):
    """1 / ‖x‖ of every row of a side.

    0 where it is not finite, scores are NaN there by similarities, and where its inverse may not be.
    """
    ROWS: tl.constexpr = KIND.ROWS
    K: tl.constexpr = KIND.K
    n_rows = shown(sizes.n_rows)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item = row // tl.where(shown(sizes.slots) == 0, n_rows, shown(sizes.slots))
    place = (row - item * shown(sizes.slots)).to(tl.int64)
    column = tl.arange(0, K)
    begins = (item.to(tl.int64) * shown(sizes.item) + place * shown(sizes.row)) * KIND.UNIT
    cells = features + begins[:, None] + column[None, :]
    inside = (row < n_rows)[:, None]
    largest = tl.full((ROWS,), 0, tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
    scale = tl.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    squares = tl.full((ROWS,), 0, tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        x = x / scale[:, None]
        squares += tl.sum(x * x, 1)
    norm = scale * tl.sqrt(squares)
    norm = tl.where((norm >= 2.0**-126) & (norm < float("inf")), norm, 0.0)
    tl.store(norms + row, inverse(norm), mask=row < n_rows)
