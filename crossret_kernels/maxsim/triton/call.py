"""One call of Sum-Max in Triton: the tiles that its kernels search by, and the norms of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import all_hidden, launch
from crossret_kernels.gpu.triton_tiles import inverse, shown
from crossret_kernels.gpu.tuning import SumMax, slots_for
from crossret_kernels.maxsim.calls import Call, Plan, Rows, Shape, Strides, Tiling
from crossret_kernels.maxsim.tables import tiles_of


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
        GAPS, QUERY_GAPS: whether rows of contexts, of queries lie in groups.
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
    GAPS: bool
    QUERY_GAPS: bool
    PRECISION: str
    STAGES: int

    @property
    def warps(self) -> int:
        return 8 if self.M >= 128 else 4


class TritonCall(Call):
    __slots__ = ()

    def tiling(
        self, queries: Shape, contexts: Shape, index: bool, gradients: bool, precision: str, unit: int
    ) -> Tiling:
        """What a thread keeps is to fit it.

        What kernels are compiled for follows from the sides' widths, never from lengths or how many items there are. A
        single item of queries, as a search has, is the exception: it has no others to share a tile with.
        """
        dtype, dim, listed = self.contexts.features.dtype, self.contexts.features.size(-1), self.pairs is not None
        width, alone = queries.host.width, len(queries.counts) == 1
        by_items = listed or width > SumMax.LARGEST_TILE
        # Without tensor cores a product's operands lie in registers: steps of D are short, fewer columns kept.
        # Fewer are kept where long items have places too. Scales, masks and places leave the largest tile no room.
        in_registers, wide = precision == "ieee", dtype == torch.float32
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
            m, n, min(n, columns), k, resident, dim, unit, contexts.strides[0] > 1, queries.strides[0] > 1, precision,
            2 if wide and resident else 3,
        )  # fmt: skip
        tiles = () if by_items else tiles_of(queries.layout, m)
        n_tiles = len(tiles[0]) if tiles else len(queries.counts)
        return Tiling(kind, kind.COLUMNS, n // kind.COLUMNS, tiles, n_tiles, unit)

    def inverse_norms(self, values: Tensor, rows: Rows, plan: Plan) -> Tensor:
        scales = torch.empty(rows.n_rows, dtype=torch.float32, device=values.device)
        kind = NormKind(plan.dim, plan.kind.UNIT, rows.strides.per_item > 1, SumMax.NORM_ROWS, SumMax.NORM_COLUMNS)
        launch(
            inverse_norms, (-(-rows.n_rows // SumMax.NORM_ROWS), 1, 1),
            (values, scales, all_hidden(NormSizes(rows.n_rows, rows.strides))), kind, rows.key,
        )  # fmt: skip
        return scales


class NormSizes(NamedTuple):
    n_rows: int
    strides: Strides


class NormKind(NamedTuple):
    D: int
    UNIT: int
    GAPS: bool
    ROWS: int
    K: int


@triton.jit
def row_offsets(rows, strides, UNIT: tl.constexpr, GAPS: tl.constexpr):
    """Where rows begin among a side's elements.

    Rows are counted in 32 bits, in which a division takes a third of the instructions; elements in 64.
    """
    if GAPS:
        items = rows // shown(strides.per_item)
        places = rows - items * shown(strides.per_item)
        return (items.to(tl.int64) * shown(strides.item) + places.to(tl.int64) * shown(strides.row)) * UNIT
    return rows.to(tl.int64) * shown(strides.row) * UNIT


@triton.jit(do_not_specialize=["sizes"])
def inverse_norms(features, norms, sizes, KIND: tl.constexpr):
    """1 / ‖x‖ of every row of a side.

    0 where it is not finite, scores are NaN there by similarities, and where its inverse may not be.
    """
    ROWS: tl.constexpr = KIND.ROWS
    K: tl.constexpr = KIND.K
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K)
    cells = features + row_offsets(row, sizes.strides, KIND.UNIT, KIND.GAPS)[:, None] + column[None, :]
    inside = (row < shown(sizes.n_rows))[:, None]
    largest = tl.zeros((ROWS,), tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
    scale = tl.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    squares = tl.zeros((ROWS,), tl.float32)
    for d in range(0, KIND.D, K):
        x = tl.load(cells + d, mask=inside & (d + column < KIND.D)[None, :], other=0.0).to(tl.float32)
        x = x / scale[:, None]
        squares += tl.sum(x * x, 1)
    norm = scale * tl.sqrt(squares)
    norm = tl.where((norm >= 2.0**-126) & (norm < float("inf")), norm, 0.0)
    tl.store(norms + row, inverse(norm), mask=row < shown(sizes.n_rows))
