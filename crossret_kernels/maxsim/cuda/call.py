"""One call of Sum-Max in CUDA C++: the tiles that its kernels search by, and the norms of rows."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.gpu.cuda_library import constant, constants, numbers
from crossret_kernels.gpu.sides import shared_memory
from crossret_kernels.gpu.tuning import CudaSumMax
from crossret_kernels.maxsim.calls import Call, Plan, Rows, Shape, Tiling
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.tables import Layout, fill_of, tiles_of


class Kind(NamedTuple):
    """How kernels search.

    Attributes:
        places: whether they are searched for.
        wide: whether by the larger tiles.
        tf32: whether float32 features are multiplied so.
        resident_rows: queries of a tile that stay on the chip; 0 where they come with every step.
    """

    places: bool
    wide: bool
    tf32: bool
    resident_rows: int


class CudaCall(Call):
    """One call, searched by kernels in csrc."""

    __slots__ = ()

    @property
    def keeps_maxima(self) -> bool:
        """For pooling "max" too: the best query is found of all, by their maxima, once they are stored."""
        return self.normalize or self.pooling == "max"

    def tiling(
        self, queries: Shape, contexts: Shape, index: bool, gradients: bool, precision: str, unit: int
    ) -> Tiling:
        values, listed = self.contexts.features, self.pairs is not None
        wide = values.element_size() == 2 and not (index or listed) and _suits_wide_tiles(queries, contexts, values)
        size, warp_rows = constants("maxsim_tile_rows")[wide], constants("maxsim_warp_rows")[wide]
        tiles = (
            () if listed else tiles_of(Layout(queries.layout.firsts, np.minimum(queries.layout.lengths, size)), size)
        )
        resident = 0
        if listed or queries.host.longest <= size:
            # Those of one tile, or of the largest of several: all warps' rows that have any.
            rows = int(queries.layout.lengths.sum()) if tiles and len(tiles[0]) == 1 else size
            rows = -(-rows // warp_rows) * warp_rows
            n_stages = -(-values.size(-1) * values.element_size() // constant("maxsim_stage_bytes"))
            resident = rows if n_stages * rows <= constant("maxsim_stages") * size else 0
        kind = Kind(index, wide, precision == "tf32" and values.dtype == torch.float32, resident)
        kept_columns = constant("maxsim_kept_columns")
        depth = constants("maxsim_tile_columns")[wide] // kept_columns
        return Tiling(kind, kept_columns, depth, tiles, len(tiles[0]) if tiles else 1, 1)

    def inverse_norms(self, values: Tensor, rows: Rows, plan: Plan) -> Tensor:
        scales = torch.empty(rows.n_rows, dtype=torch.float32, device=values.device)
        launches.norms(values, scales, numbers("maxsim_norms", **side_numbers("own", rows)))
        return scales


def side_numbers(name: str, rows: Rows) -> dict[str, int]:
    """What kernels know of a side's rows, by the names that they have for those of `name`."""
    strides = rows.strides
    of_side = {"per_item": strides.per_item, "item_stride": strides.item, "row_stride": strides.row}
    of_side |= {"rows": rows.n_rows, "items": rows.firsts.size(0)}
    return {f"{name}_{number}": value for number, value in of_side.items()}


def _suits_wide_tiles(queries: Shape, contexts: Shape, values: Tensor) -> bool:
    if int(queries.layout.lengths.sum()) * int(contexts.layout.lengths.sum()) < CudaSumMax.WIDE_CELLS:
        return False
    if shared_memory(values.device) < constant("maxsim_wide_shared_bytes"):
        return False
    usual, wide = (fill_of(np.minimum(queries.layout.lengths, size), size) for size in constants("maxsim_tile_rows"))
    return usual < CudaSumMax.WELL_FILLED or wide >= CudaSumMax.WELL_FILLED * usual


@cache
def processors(device: torch.device) -> int:
    """Of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
