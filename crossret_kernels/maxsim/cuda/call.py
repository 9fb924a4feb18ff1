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
from crossret_kernels.maxsim.calls import Call, Cut
from crossret_kernels.maxsim.cuda import launches
from crossret_kernels.maxsim.tables import fill_of


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

    def cut(self, index: bool, gradients: bool, planned: bool) -> Cut:
        values, queries, listed = self.contexts.features, self.queries, self.pairs is not None
        wide = values.element_size() == 2 and not (index or listed) and self._suits_wide_tiles(planned)
        size, warp_rows = constants("maxsim_tile_rows")[wide], constants("maxsim_warp_rows")[wide]
        resident = 0
        if listed or queries.slots <= size:
            # Those of one tile, or as many as one of several has: all warps' rows that have any.
            rows = size if listed else min(size, -(-self.n_queries * queries.slots // warp_rows) * warp_rows)
            n_stages = -(-self.dim * values.element_size() // constant("maxsim_stage_bytes"))
            resident = rows if n_stages * rows <= constant("maxsim_stages") * size else 0
        kind = Kind(index, wide, self.precision == "tf32" and values.dtype == torch.float32, resident)
        kept_columns = constant("maxsim_kept_columns")
        depth = constants("maxsim_tile_columns")[wide] // kept_columns
        return Cut(kind, kept_columns, depth, 0 if listed else size)

    def inverse_norms(self, of_contexts: bool) -> Tensor:
        features = (self.contexts if of_contexts else self.queries).features
        of_side = self.side_numbers("own", of_contexts)
        scales = torch.empty(of_side["own_rows"], dtype=torch.float32, device=self.device)
        launches.norms(features, scales, numbers("maxsim_norms", **of_side))
        return scales

    def side_numbers(self, name: str, of_contexts: bool) -> dict[str, int]:
        """What kernels know of a side's rows, by the names that they have for those of `name`."""
        sizes, n_items = (self.sizes[0], self.n_contexts) if of_contexts else (self.sizes[1], self.n_queries)
        return dict(zip(_names_of(name), (*sizes[:-1], n_items), strict=True))

    def _suits_wide_tiles(self, planned: bool) -> bool:
        queries, contexts = self.queries, self.contexts
        rows = [
            int(side.known_counts().sum()) if planned else side.n_items * side.slots for side in (queries, contexts)
        ]
        if rows[0] * rows[1] < CudaSumMax.WIDE_CELLS:
            return False
        if shared_memory(self.device) < constant("maxsim_wide_shared_bytes"):
            return False
        usual, wide = (
            fill_of(np.minimum(queries.known_counts(), size), size)
            if planned
            else max(1, size // queries.slots) * min(queries.slots, size) / size
            for size in constants("maxsim_tile_rows")
        )
        return usual < CudaSumMax.WELL_FILLED or wide >= CudaSumMax.WELL_FILLED * usual


@cache
def _names_of(side: str) -> tuple[str, ...]:
    return tuple(f"{side}_{number}" for number in ("slots", "most", "rows", "item_stride", "row_stride", "items"))


@cache
def processors(device: torch.device) -> int:
    """Of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
