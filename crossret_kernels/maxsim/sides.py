"""What launching Triton kernels of pairwise scores needs: sides of a call as kernels read them, precisions, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.ragged import Ragged
from crossret_kernels.tile_plan import ItemTable, TilePlan, items_of, tiles_of
from crossret_kernels.triton_tiles import row_norms

MOST_ROWS = 2**31 - 2**16  # tables of rows are int32; blocks of them may reach beyond the last
LEAST_SLOTS = 16  # of a tile: the least side of a product in Triton


@dataclass(frozen=True)
class Side:
    """One side's features and where its rows lie.

    Attributes:
        features: as the caller has them, rows contiguous.
        per_item, item_stride, row_stride: rows lie `row_stride` elements apart, groups of `per_item` `item_stride`.
        n_rows: all of them, padding included.
        n_items: images or captions.
        ragged: the same side, for plans.
    """

    features: Tensor
    per_item: int
    item_stride: int
    row_stride: int
    n_rows: int
    n_items: int
    ragged: Ragged

    @classmethod
    def of(cls, values: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Side:
        if values.stride(-1) != 1 or min(values.stride()) < 0:
            values = values.contiguous()
        # Plans are made on the host: what the device has is waited for once.
        offsets, lengths = (None if integers is None else integers.cpu() for integers in (offsets, lengths))
        ragged = Ragged(values, offsets, lengths)
        n_rows = values.size(0) if offsets is not None else values.size(0) * values.size(1)
        if n_rows >= MOST_ROWS:
            raise UnsupportedByBackend(
                f"backend 'triton' cannot serve this call: it takes up to {MOST_ROWS - 1} rows of a side, padding "
                f"included, these are {n_rows}"
            )
        if offsets is not None:
            return cls(values, 1, values.stride(0), values.stride(0), values.size(0), len(ragged), ragged)
        n, longest, _ = values.shape
        item_stride, row_stride = values.stride(0), values.stride(1)
        evenly = item_stride == longest * row_stride  # all rows alike: kernels need not divide to find them
        per_item, item_stride = (1, row_stride) if evenly else (max(longest, 1), item_stride)
        return cls(values, per_item, item_stride, row_stride, n * longest, n, ragged)

    @property
    def dim(self) -> int:
        return self.features.size(-1)

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.per_item, self.item_stride, self.row_stride

    def tiles(self, size: int, segments: int) -> TilePlan:
        return tiles_of(self.ragged, size, segments)

    @cached_property
    def table(self) -> ItemTable:
        return items_of(self.ragged)

    @property
    def longest(self) -> int:
        """Rows of the longest item."""
        return self.table.longest

    def arguments(self, norms: Tensor, plan: TilePlan | None) -> tuple[Any, ...]:
        """The side as kernels over pairs take it; without a plan a tile holds one item."""
        table = self.table
        tables = (table.lengths,) * 4 if plan is None else (plan.rows, plan.owners, plan.items, plan.lengths)
        return (self.features, norms, *tables, table.first_rows, table.lengths, *self.strides)

    def rows_arguments(self, plan: TilePlan | None) -> tuple[Any, ...]:
        """The side as kernels over its rows alone take it."""
        table = self.table
        tables = (table.lengths,) * 2 if plan is None else (plan.rows, plan.owners)
        return (self.features, *tables, table.first_rows, table.lengths, *self.strides)

    def norms(self, inverted: bool = False) -> Tensor:
        """‖x‖ of every row or, inverted, 1 / ‖x‖ and 0 where that is 0, (n_rows,) float32."""
        norms = torch.empty(self.n_rows, dtype=torch.float32, device=self.features.device)
        rows, k = 16, 256
        if self.n_rows:
            launch(
                row_norms,
                (-(-self.n_rows // rows),),
                self.features,
                norms,
                self.n_rows,
                *self.strides,
                self.dim,
                INVERTED=inverted,
                ROWS=rows,
                K=k,
            )
        return norms


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launches a kernel; multiplications and additions are fused, which versions of Triton disagree on by default."""
    kernel[grid](*arguments, enable_fp_fusion=True, **constants)


def precisions(dtype: torch.dtype) -> tuple[str, str]:
    """Of products of features, and of the products that come after them."""
    if dtype != torch.float32:
        return "tf32", "tf32"
    return ("tf32", "tf32") if torch.backends.cuda.matmul.fp32_precision == "tf32" else ("ieee", "tf32x3")


def slots_for(longest: int, usual: int) -> int:
    """Slots of a tile that holds the longest item: the usual number, or more where that is too few."""
    return max(usual, LEAST_SLOTS, 1 << (longest - 1).bit_length())
